#!/bin/sh
# lab-root.sh DIR ARCH...: makes the root file systems DIR/ARCH of the image of labs, of packages of Debian. It installs
# nothing, and runs no program of the packages, so that the architecture may be another one. It requires apt-get and
# dpkg-deb.
set -eu
dir=$1
shift
suite=trixie
packages='base-files base-passwd bash bash-completion bind9-dnsutils conntrack coreutils curl diffutils findutils grep
	hostname iproute2 iptables iputils-ping less libc-bin mawk nano ncurses-base ncurses-bin netbase netcat-openbsd nftables
	procps sed tar tcpdump util-linux'
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
	echo "the image of labs requires apt-get and dpkg-deb: make it on Debian or Ubuntu" >&2
	exit 1
fi
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if [ ! -f $keyring ]; then
	echo "the image of labs requires $keyring: install debian-archive-keyring" >&2
	exit 1
fi
# The mirror that the machine uses, if it is one of Debian.
uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/*$' || echo http://deb.debian.org/debian)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for arch; do
	state=$work/$arch root=$dir/$arch
	mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
	printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$uri" $suite $keyring >"$state/debian.sources"
	# Without the machine's own sources, lists and packages.
	apt() {
		"$@" -q -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o APT::Sandbox::User=root \
			-o Dir::Etc::sourcelist="$state/debian.sources" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$state/lists" \
			-o Dir::State::status=/dev/null -o Dir::Cache="$state/cache" -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
	}
	apt apt-get update >"$state/log" 2>&1 || { cat "$state/log" >&2; exit 1; }
	apt apt-get install --download-only --no-install-recommends -y $packages >"$state/log" 2>&1 || { cat "$state/log" >&2; exit 1; }
	debs=$state/cache/archives
	rm -rf "$root"
	mkdir -p "$root"
	for deb in "$debs"/base-files_*.deb "$debs"/*.deb; do # first the links of /bin, /lib and so on
		dpkg-deb -x "$deb" "$root"
	done

	# What the packages' scripts would do.
	cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
	cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
	printf 'passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n' >"$root/etc/nsswitch.conf"
	link() { [ -e "$root/usr/$2" ] || ln -s "$1" "$root/usr/$2"; }
	for x in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
		link xtables-nft-multi sbin/$x
	done
	link mawk bin/awk
	link nano bin/editor
	link less bin/pager
	link nc.openbsd bin/nc
	link bash bin/sh
	printf 'nfqproxy-lab\n' >"$root/etc/hostname"
	cat >"$root/root/.bashrc" <<'EOF'
PS1='\u@${NFQPROXY_LAB_HOST:-\h}:\w\$ '
. /usr/share/bash-completion/bash_completion
. <(nfqproxy completion bash)
EOF

	# What no lab needs. The licences stay, in /usr/share/doc.
	rm -rf "$root/var/lib/apt" "$root/var/cache" "$root/usr/share/man" "$root/usr/share/info" "$root/usr/share/locale" "$root/usr/share/i18n" \
		"$root/usr/share/perl5" "$root"/usr/lib/*/perl-base "$root"/usr/lib/*/gconv "$root/usr/share/lintian" "$root/usr/share/bug"
	find "$root/usr/share/doc" -type f ! -name copyright -delete
	find "$root/usr/share/doc" -type d -empty -delete
	echo "$root: $(du -sh "$root" | cut -f1), $(ls "$debs"/*.deb | wc -l) packages"
done
