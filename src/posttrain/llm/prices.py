"""What an exchange costs: by the price that the user states, else by a public table where it is installed."""

from __future__ import annotations

from posttrain.llm.messages import Usage
from posttrain.llm.settings import LlmSettings


def cost_of(usage: Usage, settings: LlmSettings) -> float | None:
    """Dollars; None where no price is known, which is not the same as free."""
    if settings.price is not None:
        asked, answered = settings.price
        return (usage.input_tokens * asked + usage.output_tokens * answered) / 1e6
    if settings.base_url is not None:
        return None  # a server of somebody's own: a famous model's name says nothing about its price
    return _from_table(usage, settings)


def _from_table(usage: Usage, settings: LlmSettings) -> float | None:
    try:
        import genai_prices
    except ImportError:
        return None
    counted = genai_prices.Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
    try:
        price = genai_prices.calc_price(counted, settings.model, provider_id=settings.provider)
    except LookupError:
        return None
    return float(price.total_price)
