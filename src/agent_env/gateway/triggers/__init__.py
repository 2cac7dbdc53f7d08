"""Triggers: what an environment does by itself when something happens in it (`urn:agentenv:triggers/v1`).

`grammar` is what a registration may say, `values` how texts and paths are read, `timing` when, `firing` what is done, `engine` the rest.
"""
