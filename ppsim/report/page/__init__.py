"""A run, or several, as one HTML page that needs no network: ``ppsim report``.

Rule: what the page says it has from the recording and its summary, and what its charts draw they draw from the numbers
in the page itself (``data.py``), so that drawn = computed can be tested. Words of a user (names of runs and requests,
reasons, verdicts) are text wherever they appear and never markup. Same run, same bytes.

    data        a run as columns of integers, and its words
    story       what happened, in sentences; the numbers at the top
    tables      metrics of one run, or of several side by side
    ring        who waits for whom, drawn
    library     BokehJS, which comes with the Python package bokeh
    html        the page
    assets/     its style and its scripts
"""
