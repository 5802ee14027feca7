"""Collects what every answer says about the rules, refusals included."""

from kit import WORKSPACE, make, play, request, submit, tell


def everywhere() -> None:
    (WORKSPACE / "RULES.md").unlink()
    (WORKSPACE / "RULES.md").write_text("Anything goes.\n")
    make("v1", 0.6, seed=1)
    told = [submit("v1"), submit("nothing"), submit("../data")]
    for method, path in (
        *(("GET", path) for path in ("/health", "/time", "/rules", "/submissions", "/submissions/1", "/x")),
        *(("POST", path) for path in ("/set_baseline", "/health", "/submit")),
    ):
        told.append(request(method, path, b"{" if method == "POST" else None)[1])
    told.append(request("GET", "/health", prefix="/run/wrong")[1])
    told.append(request("POST", "/submit", b"x" * (1 << 20))[1])
    tell("rules", [answer.get("rules") if isinstance(answer, dict) else answer for answer in told])


play(everywhere)
