"""How a checkpoint is judged. Runs in a process of its own; the model is in another one, behind `engine`."""


def evaluate(items, engine, settings):
    """One number from 0 to 1 for each item. `settings` are the task's `evaluator_settings`.

    `item.fields` is the row. `engine.ask(items)` asks with the pinned prompt; for words of your own,
    `engine.ask(items, turns=[[{"role": "user", "content": "…"}], …], max_new_tokens=32)`, as often as needed.
    """
    outputs = engine.ask(items)
    return [
        first_word(output.text) == item.fields["answer"] for item, output in zip(items, outputs, strict=True)
    ]


def first_word(text):
    return next(iter(text.replace(".", " ").split()), None)
