"""The two sides of prefill-decode disaggregation: queues around the scheduler, and what is voted on.

roles      a plain server, and what a role may add
prefill, decode   the queues of the two sides
ballots    what each vote looks at and does with its conclusion
"""
