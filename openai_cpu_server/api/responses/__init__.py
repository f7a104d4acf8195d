"""`/v1/responses`: items become a conversation, answers become items, and both can be stored.

Routes, the WebSocket and the rows of batches call it. A response goes the way of every `Ask`; what is its own
is to go on from a stored one, to be made in the background, and to be shown, cancelled and deleted later. A
response is stored before its client hears of its end.
"""
