"""How many small faults do the tests notice?"""
