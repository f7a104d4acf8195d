"""Caches of responses: a repeated question, or a similar one, is answered from the cache. The API looks into
`AnswerCache` before it submits a call, and hands it the events of one that ended well. Nothing is shared
between keys, models, adapters or versions of the server. A store that fails or is slow is a cache miss; only
clearing reports an error."""
