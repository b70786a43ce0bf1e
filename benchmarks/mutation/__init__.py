"""Small faults, put into the privacy code one at a time: how many of them do the tests notice?"""
