"""Structured calls to the large models that drive agents.

`LlmClient.ask` is the door: a question and a pydantic class in, a validated object out, every exchange in
a transcript. Needs nothing but the core for OpenAI-compatible servers; Anthropic and Google come with the
extra `llm`.
"""
