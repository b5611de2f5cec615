"""Pages of docs/ that describe how to perform a task."""

TASK_PAGES = (
    *("calls", "containers", "edge-cases", "frameworks", "gvl", "index", "inside"),
    *("install", "measuring", "method-spans", "methods", "off-cpu", "overhead"),
    *("probes-in-your-code", "profiling", "recipes", "security", "slow-spans", "spans"),
    *("stacks-at-events", "stuck", "troubleshooting"),
)
