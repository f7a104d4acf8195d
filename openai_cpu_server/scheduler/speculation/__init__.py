"""Drafts: tokens of a sequence that are computed before they are known to be right. Quoted from the
sequence's own text, or written by a small draft model in the backend.

Called by the scheduler, once in each step whose spans are fixed: which drafts does it compute besides? And
afterwards, to learn which were right and whether they paid.

It promises that drafts make no step longer than its budget, release nobody, and change how soon tokens come,
never which.
"""
