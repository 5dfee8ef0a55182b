"""The replicated scheduler: its state, its journal, and the rules by which a slot gets its batch.

state      request, slots, batch, ratio            what there is
rules      scheduler, admission, order, fairness   which batch a slot runs
           foresight                               what admission counts on without a radix cache
inputs     intake                                  requests, aborts, flushes, grammars that are ready
journal    journal                                 what was done in this iteration, in order
"""
