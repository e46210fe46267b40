"""Facts in, plan out: which storage for a training job, how long a save takes there, how often to save, what it costs.

Everything here is pure: facts.py is asked by cli/storage/storage_plan_command.py, and plan.py answers.
"""
