#!/bin/bash
# An own script of a cluster's: every node knows the name of the directory server, and the controller is it.
# usage: directory_server.sh     beside it: packages/ (slapd), server.pem, server.key, ca.pem, people.ldif, daemon.json
set -euo pipefail
cd "$(dirname "$0")"
install -m 644 ca.pem /etc/ssl/certs/directory-ca.pem
config=/opt/ml/config/resource_config.json
address=$(jq -r '[.InstanceGroups[] | select(.Name == "controller-machine") | .Instances[]][0].CustomerIpAddress' "$config")
grep -q ldap.cluster.internal /etc/hosts || echo "$address ldap.cluster.internal" >>/etc/hosts
# A machine of a rehearsal may not forward packets, which Docker would otherwise insist on; what is here stays.
[ -e /etc/docker/daemon.json ] || install -D -m 644 daemon.json /etc/docker/daemon.json
[ "$1" = controller ] || exit 0
export DEBIAN_FRONTEND=noninteractive
[ -x /usr/sbin/slapd ] || { dpkg -i --force-confdef packages/*.deb || dpkg --configure -a; }
systemctl stop slapd
install -d -o openldap -g openldap -m 700 /etc/ldap/own /var/lib/ldap-own
install -o openldap -g openldap -m 600 server.pem server.key ca.pem /etc/ldap/own/
cat >/etc/ldap/slapd.conf <<'CONF'
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
pidfile /run/slapd/slapd.pid
modulepath /usr/lib/ldap
moduleload back_mdb
TLSCertificateFile /etc/ldap/own/server.pem
TLSCertificateKeyFile /etc/ldap/own/server.key
database mdb
suffix "dc=example,dc=com"
rootdn "cn=admin,dc=example,dc=com"
directory /var/lib/ldap-own
access to attrs=userPassword by anonymous auth by * none
access to * by * read
CONF
[ -e /var/lib/ldap-own/data.mdb ] || runuser -u openldap -- slapadd -f /etc/ldap/slapd.conf -l people.ldif
cat >/etc/default/slapd <<'CONF'
SLAPD_CONF=/etc/ldap/slapd.conf
SLAPD_USER=openldap
SLAPD_GROUP=openldap
SLAPD_SERVICES="ldap:/// ldaps:///"
CONF
systemctl restart slapd
