"""Submissions: accepted, copied, graded and recorded. Start reading at grader.py."""
