BEGIN TRANSACTION;
CREATE TABLE about (name text primary key, value text) without rowid;
INSERT INTO "about" VALUES('about','{"format": "hpk-usage/2", "root": "/fsx"}');
INSERT INTO "about" VALUES('begun','1700000000.0');
CREATE TABLE ages (
  what text, age integer, count integer, allocated integer, primary key (what, age)
) without rowid;
CREATE TABLE elsewhere (path blob);
CREATE TABLE links (
  device integer, inode integer, place blob, run blob, uid integer, gid integer, size integer, allocated integer,
  of_task integer, primary key (device, inode)
) without rowid;
CREATE TABLE sums (
  kind text, place blob, run blob, uid integer, gid integer, count integer, size integer, allocated integer,
  primary key (kind, place, run, uid, gid)
) without rowid;
CREATE TABLE todo (
  id integer primary key, path blob, level integer, place blob, run blob, of_task integer, taken integer default 0
);
CREATE TABLE unread (path blob, why text);
CREATE INDEX todo_of on todo (of_task, taken);
COMMIT;
