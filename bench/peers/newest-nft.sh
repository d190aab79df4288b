#!/bin/sh
# newest-nft.sh DIR: puts the newest nft of Debian (unstable) with its libraries into DIR, as the program
# DIR/nft. It installs nothing. It requires apt-get and dpkg-deb.
set -eu
dir=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs" "$work/root"
# The mirror that the machine uses.
uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/*$')
cat >"$work/debian.sources" <<EOF
Types: deb
URIs: $uri
Suites: sid
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
EOF
# Without the machine's own sources, lists and packages.
apt() {
	"$@" -q -o Dir::Etc::sourcelist="$work/debian.sources" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists" \
		-o Dir::State::status=/dev/null -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
}
apt apt-get update >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
packages=$(apt apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances nftables | grep '^[a-z]' | sort -u)
(cd "$work/debs" && apt apt-get download $packages) >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
for deb in "$work"/debs/*.deb; do
	dpkg-deb -x "$deb" "$work/root"
done
rm -rf "$dir"
mkdir -p "$dir/lib"
find "$work/root" -name '*.so*' -not -path '*/gconv/*' -not -type d -exec cp -L {} "$dir/lib/" \; 2>/dev/null || true
cp "$work/root/usr/sbin/nft" "$dir/nft.bin"
loader=$(basename "$(ls "$dir"/lib/ld-linux*.so.*)")
cat >"$dir/nft" <<EOF
#!/bin/sh
d=\$(dirname "\$0")
exec "\$d/lib/$loader" --library-path "\$d/lib" "\$d/nft.bin" "\$@"
EOF
chmod +x "$dir/nft"
"$dir/nft" --version
