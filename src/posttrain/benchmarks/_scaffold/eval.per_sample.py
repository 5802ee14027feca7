"""How one answer is judged. Runs in a process of its own, without network and without the model."""


def evaluate(question, model_answer, reference_answer, **columns):
    """A number from 0 (wrong) to 1 (right); `columns` are the other fields of the row."""
    words = model_answer.replace(".", " ").split()
    return float(words[:1] == [reference_answer])
