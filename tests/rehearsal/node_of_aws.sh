#!/bin/bash
# An own script of a cluster's: what AWS's node image has for AWS's scripts to find, and a rehearsal's image lacks.
# usage: node_of_aws.sh ROLE     beside it: packages/aws-all and packages/aws-ROLE
set -euo pipefail
cd "$(dirname "$0")"
export DEBIAN_FRONTEND=noninteractive
for place in packages/aws-all packages/aws-"$1"; do
    [ -d "$place" ] || continue
    apt-get -y -qq --no-install-recommends install ./"$place"/*.deb
done
[ "$1" = controller ] || exit 0
touch /opt/slurm/etc/accounting.conf
grep -q '^include accounting.conf' /opt/slurm/etc/slurm.conf || echo 'include accounting.conf' >>/opt/slurm/etc/slurm.conf
cat >/opt/slurm/etc/slurmdbd.conf.template <<'CONF'
AuthType=auth/munge
DbdHost=localhost
DbdPort=6819
SlurmUser=slurm
LogFile=/var/log/slurmdbd.log
PidFile=/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=${SLURM_DB_USER}
StoragePass=${SLURM_DB_PASSWORD}
StorageLoc=slurm_acct_db
CONF
