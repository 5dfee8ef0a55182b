"""The real world: one process for each pipeline stage, driving the very generator that the simulator drives.

    launch.py      ``execute``: start the ranks, watch them, put their recordings together
    prepare.py checkpoint.py     what is refused before a process starts
    worker.py serve.py           a rank process: its entry, and what it does
    driver.py      the answers to the effects of ``ppsim.core``; client.py, transport.py, timing.py, status.py serve it
    stage.py       the layers of a stage; model.py, weights.py, kv.py, packed.py, attention.py, kernels/ serve it
    supervise.py watchdog.py ending.py   how a run ends
    oracle.py calibrate.py       the unsplit model to compare with; samples for fitting a cost

Never imports ``ppsim.world`` or ``ppsim.fuzz``.
"""
