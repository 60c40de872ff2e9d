-- Is a stacking pass owed: by a tick, or by a row that can't wait for one?
-- Carried by tick_unfinished and email_notification_log_urgent.
SELECT
    EXISTS (SELECT FROM pipeline.tick WHERE schedule = 'stack' AND finished_at IS NULL)
    OR EXISTS (
        SELECT FROM pipeline.email_notification_log WHERE processed_at IS NULL AND urgent
    );
