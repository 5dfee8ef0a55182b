"""KV memory of one rank: pages, the prefix tree over them, the table of requests, and the tiers below the device.

pool      pages and their holders
node      what the tree is made of; prefix: the tree; hicache: the tree where it has host memory and storage
kv        KV on its way between requests, tree and pool
"""
