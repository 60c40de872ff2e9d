"""The states of a delivery. Truth is `state_is_known` in schema.sql; these are their names."""

#: In the order of a delivery's life.
STATES = (
    "queued",
    "sending",
    "transmitting",
    "deferred",
    "uncertain",
    "held",
    "sent",
    "failed",
    "suppressed",
    "skipped",
    "cancelled",
)

#: Nothing follows, unless an operator wants it.
FINAL_STATES = ("sent", "failed", "suppressed", "skipped", "cancelled")

#: From which states an operator's verbs take a delivery.
RETRIED = ("failed", "suppressed", "skipped", "cancelled", "deferred")
RELEASED = ("held",)
CANCELLED = ("queued", "deferred", "held", "uncertain")
