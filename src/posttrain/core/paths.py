"""The only place that knows names of files and folders of the lab."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LabPaths:
    """The lab home.

    home/
    ├── models/<org>/<name>/      read-only, .manifest.json written last
    │   ├── packages.yaml         the user's table of packages that carry weights
    │   ├── models.yaml           the user's table of how models generate
    │   ├── siblings.yaml         the user's table of other fine-tunes of base models
    │   └── .incoming/  .locks/   what is being fetched, and by whom
    ├── wheels/                   packages put there by hand, for machines without an index
    ├── datasets/<task>/          visible/ and private/; .hub/ holds rows as the hub gave them
    ├── baselines/<digest>.json
    ├── facts/<digest>.json  selfchecks/<digest>.json
    ├── results.csv  split.salt   (the lab's own key of splits)
    ├── envs/<tool>/              tool environments, .manifest.json written last
    ├── agents/  benchmarks/      the user's plugins
    ├── blueprints/<name>/
    └── runs/<task>/<run_id>/
    """

    home: Path

    @property
    def models(self) -> Path:
        return self.home / "models"

    @property
    def model_packages(self) -> Path:
        return self.models / "packages.yaml"

    @property
    def model_settings(self) -> Path:
        """The user's table of how models generate."""
        return self.models / "models.yaml"

    @property
    def siblings(self) -> Path:
        """The operator's table of other fine-tunes of base models."""
        return self.models / "siblings.yaml"

    @property
    def incoming(self) -> Path:
        """Where downloads lie until they are complete; nothing in it counts."""
        return self.models / ".incoming"

    @property
    def locks(self) -> Path:
        return self.models / ".locks"

    @property
    def wheels(self) -> Path:
        return self.home / "wheels"

    @property
    def datasets(self) -> Path:
        return self.home / "datasets"

    @property
    def hub_rows(self) -> Path:
        """Rows of hub data sets, one folder a data set."""
        return self.datasets / ".hub"

    @property
    def baselines(self) -> Path:
        return self.home / "baselines"

    @property
    def selfchecks(self) -> Path:
        return self.home / "selfchecks"

    @property
    def facts(self) -> Path:
        """What engine workers reported of base models, by digest."""
        return self.home / "facts"

    @property
    def results_csv(self) -> Path:
        return self.home / "results.csv"

    @property
    def envs(self) -> Path:
        return self.home / "envs"

    @property
    def agents(self) -> Path:
        return self.home / "agents"

    @property
    def benchmarks(self) -> Path:
        return self.home / "benchmarks"

    @property
    def blueprints(self) -> Path:
        return self.home / "blueprints"

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    @property
    def salt(self) -> Path:
        return self.home / "split.salt"

    def model(self, name: str) -> Path:
        """`name` is `<org>/<name>`."""
        return self.models / name

    def model_manifest(self, name: str) -> Path:
        return self.model(name) / ".manifest.json"

    def dataset(self, task: str) -> Path:
        return self.datasets / task

    def tool_env(self, tool: str) -> Path:
        """`.manifest.json` in it is written last; install.log is what installers said."""
        return self.envs / tool

    def run(self, task: str, run_id: str) -> RunPaths:
        return RunPaths(self.runs / task.replace(":", "@") / run_id)

    def find_run(self, run_id: str) -> RunPaths | None:
        """The run with this id under any task, or None."""
        found = sorted(self.runs.glob(f"*/{run_id}"))
        return RunPaths(found[0]) if found else None


@dataclass(frozen=True)
class RunPaths:
    """One run.

    <run_id>/
    ├── request.json  plan.json  clock.json  record.json
    ├── run.log  run.public.log  agent.log  grading_server.log  engine.log  figure.log
    ├── ledger.jsonl  ledger.torn
    ├── submissions/<n>/          the grader's own copy
    ├── scripts/<digest>          the agent's code as it was at each submission
    ├── grading/                  engine.log of the worker that stays
    ├── grading/<n>/              grade.json, items.jsonl, engine.log, scorer.log (GradingFolder)
    ├── reports/                  metrics.json, audit.json, figures/, summary.md, summary.jsonl, check.json
    └── workspace/                all the agent sees
    """

    root: Path

    @property
    def run_id(self) -> str:
        return self.root.name

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def request(self) -> Path:
        return self.root / "request.json"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def clock(self) -> Path:
        return self.root / "clock.json"

    @property
    def record(self) -> Path:
        return self.root / "record.json"

    @property
    def run_log(self) -> Path:
        return self.root / "run.log"

    @property
    def agent_log(self) -> Path:
        return self.root / "agent.log"

    @property
    def public_log(self) -> Path:
        """What the agent may read of run.log; shown to it as its own run.log."""
        return self.root / "run.public.log"

    @property
    def server_log(self) -> Path:
        return self.root / "grading_server.log"

    @property
    def engine_log(self) -> Path:
        """Of the worker that opens the base for the plan; gradings have their own."""
        return self.root / "engine.log"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.jsonl"

    @property
    def torn(self) -> Path:
        return self.root / "ledger.torn"

    @property
    def submissions(self) -> Path:
        return self.root / "submissions"

    def submission(self, number: int) -> Path:
        return self.submissions / str(number)

    def script(self, digest: str) -> Path:
        """A text of the agent's code, by its content."""
        return self.root / "scripts" / digest

    @property
    def grading(self) -> Path:
        return self.root / "grading"

    @property
    def warm_engine_log(self) -> Path:
        """Of the worker that stays; each grading's engine.log holds its part of it."""
        return self.grading / "engine.log"

    def grading_of(self, name: int | str) -> Path:
        """Folder of one grading: a submission's number, `baseline-val`, `baseline-test` or `final-test`."""
        return self.grading / str(name)

    @property
    def figure_log(self) -> Path:
        return self.root / "figure.log"

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    @property
    def metrics(self) -> Path:
        return self.reports / "metrics.json"

    @property
    def audit(self) -> Path:
        return self.reports / "audit.json"

    @property
    def summary_check(self) -> Path:
        return self.reports / "check.json"

    def summary(self, name: str) -> Path:
        """A kept copy of the agent's summary.md or summary.jsonl."""
        return self.reports / name

    @property
    def figures(self) -> Path:
        return self.reports / "figures"

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.root / "workspace")


@dataclass(frozen=True)
class GradingFolder:
    """What lies in the folder of one grading: <run_id>/grading/<name>/."""

    root: Path

    @property
    def grade(self) -> Path:
        return self.root / "grade.json"

    @property
    def items(self) -> Path:
        return self.root / "items.jsonl"

    @property
    def engine_log(self) -> Path:
        return self.root / "engine.log"

    @property
    def scorer_log(self) -> Path:
        return self.root / "scorer.log"

    @property
    def compare_log(self) -> Path:
        return self.root / "compare.log"


@dataclass(frozen=True)
class Workspace:
    """All the agent sees.

    workspace/
    ├── code/  output/  reports/
    ├── models/<org>/<name>       read-only
    ├── data/                     read-only; train.jsonl is the visible split
    ├── prompt/                   settings.json, template.txt, samples.jsonl
    ├── description.md  instructions.md  RULES.md  skills/
    └── run.log  agent.log  run_meta.json  scores.json      exports
    """

    root: Path

    @property
    def code(self) -> Path:
        return self.root / "code"

    @property
    def output(self) -> Path:
        return self.root / "output"

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def prompt(self) -> Path:
        return self.root / "prompt"

    @property
    def prompt_settings(self) -> Path:
        return self.prompt / "settings.json"

    @property
    def prompt_template(self) -> Path:
        return self.prompt / "template.txt"

    @property
    def prompt_samples(self) -> Path:
        return self.prompt / "samples.jsonl"

    @property
    def skills(self) -> Path:
        return self.root / "skills"

    @property
    def description(self) -> Path:
        return self.root / "description.md"

    @property
    def instructions(self) -> Path:
        return self.root / "instructions.md"

    @property
    def rules(self) -> Path:
        return self.root / "RULES.md"

    @property
    def run_log(self) -> Path:
        return self.root / "run.log"

    @property
    def agent_log(self) -> Path:
        return self.root / "agent.log"

    @property
    def run_meta(self) -> Path:
        return self.root / "run_meta.json"

    @property
    def scores(self) -> Path:
        return self.root / "scores.json"
