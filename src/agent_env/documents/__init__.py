"""Stored documents and records as pure data: their shapes, their spellings, their endings. No input or output but reading a file.

Its modules are imported one by one (`documents.records`, `documents.task`, …), so that a command pays only for what it uses.
"""
