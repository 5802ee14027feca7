"""One run, from what was asked to what happened. Start reading at orchestrator.py."""
