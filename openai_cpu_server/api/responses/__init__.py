"""`/v1/responses`: items become a conversation, answers become items, and both can be stored.

`api/application.py` names its routes; requests, a WebSocket's messages and the rows of batches reach them. A
response goes the way of every `Ask`; what is its own is to go on from a stored one (`turns`), to be made in
the background, and to be shown, cancelled and deleted later (`stored`). Promises: a response is stored before
its client hears of its end; one that is made in the background has an end in the database, whoever listens; a
row of a batch is stored only where it says so.
"""
