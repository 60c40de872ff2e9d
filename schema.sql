-- The pipeline's tables: the contract with every application that writes notifications.
--
-- Apply it with `pipeline init` or with psql. It may be applied again at any time, by several
-- processes at once, and brings an older version up to date in place. `recipient` and `entity`
-- may be views of a shop's own tables: whatever stands under these names is left as it is.

BEGIN;

-- One applies, the others wait and then find nothing left to do.
SELECT pg_advisory_xact_lock(hashtextextended('pipeline.schema', 0));

CREATE SCHEMA IF NOT EXISTS pipeline;
COMMENT ON SCHEMA pipeline IS 'Notifications, stacked into one email per recipient and item.';

CREATE TABLE IF NOT EXISTS pipeline.schema_version (
    version     integer     PRIMARY KEY,
    applied_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE pipeline.schema_version IS 'One row for each version of this file that was applied; the highest is the one in force.';
COMMENT ON COLUMN pipeline.schema_version.version IS 'Whole number, counted up with each change of the tables.';
COMMENT ON COLUMN pipeline.schema_version.applied_at IS 'When this version was applied here.';

-- The advisory lock of a stack. Whoever makes one of its deliveries wait, or wait again, holds it.
CREATE OR REPLACE FUNCTION pipeline.stack_key(receiver_id text, entity_name text, entity_identifier text)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended(receiver_id || E'\x1f' || entity_name || E'\x1f' || entity_identifier, 7274);
COMMENT ON FUNCTION pipeline.stack_key IS 'Key of the advisory lock on a stack: one recipient, one item.';

-- What applications write ---------------------------------------------------------------------

-- Ids begin with the time in milliseconds and are random for the rest (RFC 9562, version 7): their
-- index grows at its end, and what is written and claimed today is not spread all over it.
CREATE TABLE IF NOT EXISTS pipeline.email_notification_log (
    id                 uuid        PRIMARY KEY DEFAULT (
        lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
        || '-7' || substr(gen_random_uuid()::text, 16))::uuid,
    receiver_id        text        NOT NULL,
    triggered_by_id    text,
    entity_name        text        NOT NULL,
    entity_identifier  text        NOT NULL,
    data               jsonb       NOT NULL,
    urgent             boolean     NOT NULL DEFAULT false,
    created_at         timestamptz NOT NULL DEFAULT now(),
    processed_at       timestamptz,
    sent_at            timestamptz,
    delivery_id        uuid,
    CONSTRAINT claimed_rows_have_a_delivery
        CHECK ((processed_at IS NULL) = (delivery_id IS NULL)),
    CONSTRAINT receiver_id_is_at_most_800_bytes CHECK (octet_length(receiver_id) <= 800),
    CONSTRAINT entity_name_is_at_most_800_bytes CHECK (octet_length(entity_name) <= 800),
    CONSTRAINT entity_identifier_is_at_most_800_bytes CHECK (octet_length(entity_identifier) <= 800)
);
COMMENT ON TABLE pipeline.email_notification_log IS 'What somebody should hear about. An INSERT, by any client and in any transaction, is the whole producer interface.';
COMMENT ON COLUMN pipeline.email_notification_log.id IS 'Identity of the notification.';
COMMENT ON COLUMN pipeline.email_notification_log.receiver_id IS 'Who is told: recipient.id.';
COMMENT ON COLUMN pipeline.email_notification_log.triggered_by_id IS 'Who did it: recipient.id, or null.';
COMMENT ON COLUMN pipeline.email_notification_log.entity_name IS 'Kind of the item that it is about, such as issue.';
COMMENT ON COLUMN pipeline.email_notification_log.entity_identifier IS 'Identity of that item within its kind.';
COMMENT ON COLUMN pipeline.email_notification_log.data IS 'What happened: {"issue": ..., "issue_activity": ...} or the plain form {"verb", "field", "old_value", "new_value", "comment", "at"}.';
COMMENT ON COLUMN pipeline.email_notification_log.urgent IS 'Due at once, with its whole stack, rather than at the next tick.';
COMMENT ON COLUMN pipeline.email_notification_log.created_at IS 'When it was written.';
COMMENT ON COLUMN pipeline.email_notification_log.processed_at IS 'When it was claimed: the time of the claiming transaction. Null while it waits.';
COMMENT ON COLUMN pipeline.email_notification_log.sent_at IS 'When the mail server accepted the delivery that it is in.';
COMMENT ON COLUMN pipeline.email_notification_log.delivery_id IS 'The one delivery that it is in: delivery.id, set together with processed_at.';

-- Carries the claim: a pass walks it in key order, stack by stack.
CREATE INDEX IF NOT EXISTS email_notification_log_pending
    ON pipeline.email_notification_log (receiver_id, entity_name, entity_identifier)
    WHERE processed_at IS NULL;
-- Carries the urgent pass and the scheduler's look for urgent rows.
CREATE INDEX IF NOT EXISTS email_notification_log_urgent
    ON pipeline.email_notification_log (receiver_id, entity_name, entity_identifier)
    WHERE processed_at IS NULL AND urgent;
-- Carries the reading of a delivery's rows, their sent_at, and the purge.
CREATE INDEX IF NOT EXISTS email_notification_log_delivery
    ON pipeline.email_notification_log (delivery_id)
    WHERE delivery_id IS NOT NULL;

-- Who and what: tables at first, views of a shop's own tables later -----------------------------

CREATE TABLE IF NOT EXISTS pipeline.recipient (
    id            text    PRIMARY KEY,
    email         text,
    display_name  text,
    locale        text,
    time_zone     text,
    active        boolean DEFAULT true
);

CREATE TABLE IF NOT EXISTS pipeline.entity (
    entity_name        text NOT NULL,
    entity_identifier  text NOT NULL,
    reference          text,
    title              text,
    url                text,
    PRIMARY KEY (entity_name, entity_identifier)
);

DO $$
BEGIN
    IF (SELECT relkind FROM pg_class WHERE oid = 'pipeline.recipient'::regclass) IN ('r', 'p') THEN
        COMMENT ON TABLE pipeline.recipient IS 'Who can be told. A shop replaces it by a view of the same name over its own users.';
        COMMENT ON COLUMN pipeline.recipient.id IS 'Identity, as in email_notification_log.receiver_id and triggered_by_id.';
        COMMENT ON COLUMN pipeline.recipient.email IS 'Address that mail goes to; null when there is none.';
        COMMENT ON COLUMN pipeline.recipient.display_name IS 'Name that others see.';
        COMMENT ON COLUMN pipeline.recipient.locale IS 'Language tag (BCP 47), or null.';
        COMMENT ON COLUMN pipeline.recipient.time_zone IS 'IANA time zone, such as Europe/Paris, or null for UTC.';
        COMMENT ON COLUMN pipeline.recipient.active IS 'False: nothing is sent, the delivery ends suppressed.';
    END IF;
    IF (SELECT relkind FROM pg_class WHERE oid = 'pipeline.entity'::regclass) IN ('r', 'p') THEN
        COMMENT ON TABLE pipeline.entity IS 'Optional: how an item is shown. Without a row the notification''s own data is used. May be a view.';
        COMMENT ON COLUMN pipeline.entity.entity_name IS 'Kind of the item.';
        COMMENT ON COLUMN pipeline.entity.entity_identifier IS 'Identity of the item within its kind.';
        COMMENT ON COLUMN pipeline.entity.reference IS 'Short name that people use, such as WEB-12.';
        COMMENT ON COLUMN pipeline.entity.title IS 'Title of the item.';
        COMMENT ON COLUMN pipeline.entity.url IS 'Where the item is looked at: http or https.';
    END IF;
END
$$;

-- One stacked email -----------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS pipeline.delivery (
    id                  uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    receiver_id         text        NOT NULL,
    entity_name         text        NOT NULL,
    entity_identifier   text        NOT NULL,
    state               text        NOT NULL DEFAULT 'queued',
    reason              text,
    attempt_count       integer     NOT NULL DEFAULT 0,
    uncertain_count     integer     NOT NULL DEFAULT 0,
    attempt_token       uuid,
    next_attempt_at     timestamptz NOT NULL DEFAULT now(),
    lease_expires_at    timestamptz,
    expires_at          timestamptz NOT NULL DEFAULT now() + interval '3 days',
    message_id          text        NOT NULL,
    notification_count  integer     NOT NULL DEFAULT 0,
    created_at          timestamptz NOT NULL DEFAULT now(),
    sent_at             timestamptz,
    updated_at          timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT state_is_known CHECK (state IN (
        'queued', 'sending', 'transmitting', 'deferred', 'uncertain', 'held',
        'sent', 'failed', 'suppressed', 'skipped', 'cancelled'))
);
COMMENT ON TABLE pipeline.delivery IS 'One stacked email, and the truth about it: messages in the queue only ring.';
COMMENT ON COLUMN pipeline.delivery.id IS 'Identity of the delivery.';
COMMENT ON COLUMN pipeline.delivery.receiver_id IS 'Who gets it.';
COMMENT ON COLUMN pipeline.delivery.entity_name IS 'Kind of the item that it is about.';
COMMENT ON COLUMN pipeline.delivery.entity_identifier IS 'Identity of that item.';
COMMENT ON COLUMN pipeline.delivery.state IS 'queued, sending, transmitting, deferred, uncertain, held; final: sent, failed, suppressed, skipped, cancelled.';
COMMENT ON COLUMN pipeline.delivery.reason IS 'Why it is in this state, for people.';
COMMENT ON COLUMN pipeline.delivery.attempt_count IS 'Attempts used up. Counted when an attempt begins, given back when the relay was to blame.';
COMMENT ON COLUMN pipeline.delivery.uncertain_count IS 'How often an attempt ended without anybody knowing whether the server took the mail.';
COMMENT ON COLUMN pipeline.delivery.attempt_token IS 'Whoever holds it may move the delivery on; a new one with each claim.';
COMMENT ON COLUMN pipeline.delivery.next_attempt_at IS 'Not before this time, while queued or deferred.';
COMMENT ON COLUMN pipeline.delivery.lease_expires_at IS 'Until when its sender has it, while sending or transmitting.';
COMMENT ON COLUMN pipeline.delivery.expires_at IS 'Age limit: after this time no further attempt begins and it fails.';
COMMENT ON COLUMN pipeline.delivery.message_id IS 'RFC 5322 Message-ID with its angle brackets; the same for every attempt.';
COMMENT ON COLUMN pipeline.delivery.notification_count IS 'How many notifications are stacked in it.';
COMMENT ON COLUMN pipeline.delivery.created_at IS 'When the stack was claimed.';
COMMENT ON COLUMN pipeline.delivery.sent_at IS 'When the server''s acceptance was recorded.';
COMMENT ON COLUMN pipeline.delivery.updated_at IS 'When its state last changed.';

-- Carries the senders' claim: oldest due first.
CREATE INDEX IF NOT EXISTS delivery_queued ON pipeline.delivery (next_attempt_at, id)
    WHERE state = 'queued';
CREATE INDEX IF NOT EXISTS delivery_deferred ON pipeline.delivery (next_attempt_at)
    WHERE state = 'deferred';
-- Carries the look for senders that fell silent: a few hundred at the most, so by state alone. An
-- index on their leases would have to be written each time that one is extended.
DROP INDEX IF EXISTS pipeline.delivery_in_flight;
CREATE INDEX IF NOT EXISTS delivery_in_hand ON pipeline.delivery (state)
    WHERE state IN ('sending', 'transmitting');
CREATE INDEX IF NOT EXISTS delivery_unsettled ON pipeline.delivery (state, updated_at)
    WHERE state IN ('uncertain', 'held');
-- The second condition keeps it from whoever doesn't ask for an age: with few statistics it would be
-- as good as delivery_joinable or delivery_queued for the planner, and all that waits would be read.
DROP INDEX IF EXISTS pipeline.delivery_waiting_expiry;
CREATE INDEX IF NOT EXISTS delivery_expiry ON pipeline.delivery (expires_at)
    WHERE state IN ('queued', 'deferred') AND expires_at >= '-infinity';
-- Carries the list of finished deliveries and the purge.
CREATE INDEX IF NOT EXISTS delivery_final ON pipeline.delivery (updated_at)
    WHERE state IN ('sent', 'failed', 'suppressed', 'skipped', 'cancelled');
-- Carries the lists of what was never sent: few, among millions that were.
CREATE INDEX IF NOT EXISTS delivery_unsent ON pipeline.delivery (updated_at)
    WHERE state IN ('failed', 'suppressed', 'skipped', 'cancelled');
-- A guard as much as an index: a stack has at most one delivery that its new rows can join. One that
-- may have been received is never joined: the same Message-ID must not come with other content.
CREATE UNIQUE INDEX IF NOT EXISTS delivery_joinable
    ON pipeline.delivery (receiver_id, entity_name, entity_identifier)
    WHERE state IN ('queued', 'deferred') AND uncertain_count = 0;

CREATE TABLE IF NOT EXISTS pipeline.delivery_attempt (
    delivery_id     uuid        NOT NULL REFERENCES pipeline.delivery (id) ON DELETE CASCADE,
    attempt_number  integer     NOT NULL,
    attempt_token   uuid        NOT NULL,
    worker          text        NOT NULL,
    started_at      timestamptz NOT NULL DEFAULT now(),
    finished_at     timestamptz,
    stage           text        NOT NULL DEFAULT 'prepare',
    smtp_code       integer,
    enhanced_code   text,
    reply           text,
    error           text,
    outcome         text,
    given_up_at     timestamptz,
    PRIMARY KEY (delivery_id, attempt_number),
    CONSTRAINT stage_is_known CHECK (stage IN
        ('prepare', 'connect', 'mail', 'rcpt', 'data', 'dot', 'reply')),
    CONSTRAINT outcome_is_known CHECK (outcome IN
        ('sent', 'deferred', 'failed', 'abandoned', 'uncertain'))
);
COMMENT ON TABLE pipeline.delivery_attempt IS 'One row an attempt: the history that a person reads.';
COMMENT ON COLUMN pipeline.delivery_attempt.delivery_id IS 'The delivery that was attempted.';
COMMENT ON COLUMN pipeline.delivery_attempt.attempt_number IS '1, 2, 3 ... within the delivery.';
COMMENT ON COLUMN pipeline.delivery_attempt.attempt_token IS 'The token under which it ran.';
COMMENT ON COLUMN pipeline.delivery_attempt.worker IS 'host:process id:thread id.';
COMMENT ON COLUMN pipeline.delivery_attempt.started_at IS 'When it began.';
COMMENT ON COLUMN pipeline.delivery_attempt.finished_at IS 'When its outcome was recorded; null while it runs.';
COMMENT ON COLUMN pipeline.delivery_attempt.stage IS 'How far it came: prepare, connect, mail, rcpt, data, dot, reply.';
COMMENT ON COLUMN pipeline.delivery_attempt.smtp_code IS 'Reply code (RFC 5321 section 4.2), or null when no reply came.';
COMMENT ON COLUMN pipeline.delivery_attempt.enhanced_code IS 'Enhanced status code (RFC 3463), or null.';
COMMENT ON COLUMN pipeline.delivery_attempt.reply IS 'Text of the server''s reply.';
COMMENT ON COLUMN pipeline.delivery_attempt.error IS 'What went wrong, where no reply tells.';
COMMENT ON COLUMN pipeline.delivery_attempt.outcome IS 'sent, deferred, failed, abandoned (lease lost before the dot), uncertain (lease or reply lost after it); null while it runs.';
COMMENT ON COLUMN pipeline.delivery_attempt.given_up_at IS 'When the outcome was declared for a sender that fell silent; null again once it has told its own.';

-- What runs the machine ---------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS pipeline.tick (
    schedule     text        NOT NULL,
    slot         timestamptz NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    finished_at  timestamptz,
    PRIMARY KEY (schedule, slot)
);
COMMENT ON TABLE pipeline.tick IS 'Ticks of the clock, one row each however many schedulers run.';
COMMENT ON COLUMN pipeline.tick.schedule IS 'Which schedule, such as stack.';
COMMENT ON COLUMN pipeline.tick.slot IS 'Beginning of the slot: a multiple of the interval since 1970 (UTC).';
COMMENT ON COLUMN pipeline.tick.created_at IS 'When a scheduler made it.';
COMMENT ON COLUMN pipeline.tick.finished_at IS 'When its pass was over; null while it is owed.';
CREATE INDEX IF NOT EXISTS tick_unfinished ON pipeline.tick (schedule) WHERE finished_at IS NULL;

CREATE TABLE IF NOT EXISTS pipeline.doorbell (
    message_id  uuid        PRIMARY KEY,
    actor       text        NOT NULL,
    rung_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    answered_at timestamptz,
    over_at     timestamptz
);
CREATE INDEX IF NOT EXISTS doorbell_unfinished ON pipeline.doorbell (actor) WHERE over_at IS NULL;
CREATE INDEX IF NOT EXISTS doorbell_over ON pipeline.doorbell (over_at) WHERE over_at IS NOT NULL;
COMMENT ON TABLE pipeline.doorbell IS 'Our own Dramatiq messages: what they say stands in the other tables.';
COMMENT ON COLUMN pipeline.doorbell.message_id IS 'Dramatiq''s message id.';
COMMENT ON COLUMN pipeline.doorbell.actor IS 'Who is called: pipeline.stack or pipeline.send.';
COMMENT ON COLUMN pipeline.doorbell.rung_at IS 'When it was last rung.';
COMMENT ON COLUMN pipeline.doorbell.answered_at IS 'When a worker began to answer it, or last showed that it is still at it.';
COMMENT ON COLUMN pipeline.doorbell.over_at IS 'When the answer was over, or nobody was left to give one.';

CREATE TABLE IF NOT EXISTS pipeline.sender (
    slot              integer     PRIMARY KEY,
    token             uuid,
    worker            text,
    started_at        timestamptz,
    lease_expires_at  timestamptz NOT NULL DEFAULT '-infinity'
);
COMMENT ON TABLE pipeline.sender IS 'Places for senders: as many as may hold a connection to the relay at once.';
COMMENT ON COLUMN pipeline.sender.slot IS '1 to the number of senders.';
COMMENT ON COLUMN pipeline.sender.token IS 'Whoever holds it has the place.';
COMMENT ON COLUMN pipeline.sender.worker IS 'host:process id:thread id.';
COMMENT ON COLUMN pipeline.sender.started_at IS 'When the place was taken.';
COMMENT ON COLUMN pipeline.sender.lease_expires_at IS 'The place is free after this time.';

CREATE TABLE IF NOT EXISTS pipeline.relay (
    name           text        PRIMARY KEY,
    failure_count  integer     NOT NULL DEFAULT 0,
    retry_at       timestamptz NOT NULL DEFAULT '-infinity',
    reason         text,
    smtp_code      integer,
    updated_at     timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE pipeline.relay ADD COLUMN IF NOT EXISTS next_slot_at timestamptz NOT NULL DEFAULT '-infinity';
COMMENT ON TABLE pipeline.relay IS 'Mail servers that had trouble, or that may only be sent so much, known to all senders.';
COMMENT ON COLUMN pipeline.relay.name IS 'host:port.';
COMMENT ON COLUMN pipeline.relay.failure_count IS 'Troubles in a row; 0 when it works.';
COMMENT ON COLUMN pipeline.relay.retry_at IS 'It is left alone until then.';
COMMENT ON COLUMN pipeline.relay.reason IS 'What it last answered, or why it did not.';
COMMENT ON COLUMN pipeline.relay.smtp_code IS 'Reply code of the last trouble, or null.';
COMMENT ON COLUMN pipeline.relay.next_slot_at IS 'Not before this time may the next message go to it, where a limit is set.';
COMMENT ON COLUMN pipeline.relay.updated_at IS 'When this last changed.';

CREATE TABLE IF NOT EXISTS pipeline.process (
    kind        text        NOT NULL,
    name        text        NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT now(),
    seen_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, name)
);
COMMENT ON TABLE pipeline.process IS 'Workers and schedulers that were seen lately.';
COMMENT ON COLUMN pipeline.process.kind IS 'worker or scheduler.';
COMMENT ON COLUMN pipeline.process.name IS 'host:process id.';
COMMENT ON COLUMN pipeline.process.started_at IS 'When it was first seen.';
COMMENT ON COLUMN pipeline.process.seen_at IS 'When it was last seen.';

-- Upkeep -------------------------------------------------------------------------------------------

-- Half of each page is left for the row's next version: a row is claimed once and marked as sent
-- once, a delivery and its attempt are updated four times. The new version finds room where the old
-- one was, so that `sent_at` touches no index, and tables are no larger than they would become
-- anyway. Vacuum comes early, while what is dead is still in memory.
DO $$
DECLARE
    name text;
    options text[] := ARRAY[
        'fillfactor=50', 'autovacuum_vacuum_scale_factor=0.02',
        'autovacuum_vacuum_threshold=2000', 'autovacuum_analyze_scale_factor=0.05'];
BEGIN
    FOREACH name IN ARRAY ARRAY['email_notification_log', 'delivery', 'delivery_attempt'] LOOP
        IF (
            SELECT NOT coalesce(reloptions, '{}') @> options
            FROM pg_class
            WHERE oid = ('pipeline.' || name)::regclass AND relkind = 'r'
        ) THEN
            EXECUTE format(
                'ALTER TABLE pipeline.%I SET (%s)', name, array_to_string(options, ', '));
        END IF;
    END LOOP;
END
$$;

INSERT INTO pipeline.schema_version (version) VALUES (1) ON CONFLICT DO NOTHING;

COMMIT;
