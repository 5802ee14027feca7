"""Twenty draws from the same distribution, and the best of them; or twenty copies of the base."""

import shutil

from kit import BASE, OUTPUT, make, play, submit, tell

DRAWS = 20


def seeds() -> None:
    """Fine-tunes that are no better than the base: each is right on other questions by chance."""
    scores = []
    for seed in range(DRAWS):
        make(f"v{seed}", 0.5, seed=seed)
        scores.append(submit(f"v{seed}")["score"])
    tell("scores", scores)


def copies() -> None:
    """The base's weights under twenty names, each with another file beside them."""
    told = []
    for number in range(DRAWS):
        folder = OUTPUT / f"v{number}"
        shutil.copytree(BASE, folder, copy_function=shutil.copyfile)
        (folder / "generation_config.json").write_text(f'{{"temperature": 0.{number + 1}}}')
        told.append(submit(f"v{number}"))
    tell("improvements", [answer["improvement"] for answer in told])


def budget() -> None:
    """More than are allowed."""
    told = []
    for seed in range(4):
        make(f"v{seed}", 0.5, seed=seed)
        told.append(submit(f"v{seed}")["http"])
    tell("statuses", told)


play(seeds, copies, budget)
