"""The core of autoregressive engines, shared by thinker and talker.

Policy first, torch last: `sequence`, `blocks` and `scheduler` are pure Python and know neither what a token is nor
what a model computes; `random`, `sampling`, `linear`, `kv_cache`, `attention` and `runner` need torch; `engine` runs
the step loop in a thread of its own and answers asyncio callers.
"""
