-- How far a chaos run's notifications and deliveries are: those that wait, and those on their way.
SELECT
    (SELECT count(*) FROM pipeline.email_notification_log),
    (SELECT count(*) FROM pipeline.email_notification_log WHERE processed_at IS NULL),
    (SELECT count(*) FROM pipeline.delivery
     WHERE state IN ('queued', 'sending', 'transmitting', 'deferred', 'uncertain'))
