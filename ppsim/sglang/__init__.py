"""SGLang in, SGLang out: launch lines and server logs as people have them.

Rule: what is not understood is named, with its line; nothing is guessed in silence and nothing is half used.

    launch.py    read_launch, to_scenario, to_launch_line
    logs.py      read_log

A launch text goes through unwrap (prompts, YAML), words (shell words), commands (which words are whose, under which
variables), arguments (the flag table) and advice (combinations); a dump or JSON goes through dumps instead. A log goes
through batch_lines (complete, short, cut, damaged) and samples (what may be measured from them), and beside these
through windows, benches, profiles, findings and started. This file imports nothing: the readers load when used.
"""
