"""Replication: what survives a node and its disk.

`engine` finds the program that copies databases, `daemon` runs it on a node, `paths` says where
replicas lie, `objects` reads and removes what lies there, `restore` brings files back.
"""
