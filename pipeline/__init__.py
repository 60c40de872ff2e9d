"""Notification rows in Postgres become stacked emails; nothing is lost, nothing is sent twice."""
