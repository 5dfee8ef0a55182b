"""The library: what ``import ppsim`` offers, as functions and small objects over the packages of the house.

Rule: nothing here prints, logs, asks or ends the process; what a command would tell on stderr is a field of the answer.
Tables are pandas data frames with the unit at the end of each column's name, and pandas is loaded when one is made.
"""
