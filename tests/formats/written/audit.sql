BEGIN TRANSACTION;
CREATE TABLE about (name text primary key, value text) without rowid;
INSERT INTO "about" VALUES('format','hpk-audit/1');
CREATE TABLE gaps (since real, until real, source text, id text, why text, host text, primary key (source, id));
CREATE TABLE jobs (
  job text, uid integer, user text, host text, start real, "end" real, primary key (job, host)
) without rowid;
CREATE TABLE records (seq integer primary key autoincrement, time, source, id, op, path, new_path, host, uid, user, pid, command, job, by, result, note, chain text, unique (source, id));
CREATE INDEX by_path on records (path);
CREATE INDEX by_time on records (time);
CREATE INDEX jobs_of on jobs (uid, host);
DELETE FROM "sqlite_sequence";
COMMIT;
