"""Acceptances and verifiers, which decide which drafts a method accepts.

An *acceptance* computes the relaxed probability of a draft. A *verifier* accepts or rejects the draft.
"""
