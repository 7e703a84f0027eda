#!/usr/bin/env bash
# Install what build/release has into a scratch folder, and use it as a stranger would: the program,
# the completions, and the library through pkg-config, shared and static.
set -euo pipefail
cd "$(dirname "$0")/../.."
prefix=$PWD/build/check/install
rm -rf "$prefix"
cmake --install build/release --prefix "$prefix"

"$prefix/bin/quern" version
for f in bash-completion/completions/quern zsh/site-functions/_quern fish/vendor_completions.d/quern.fish; do
    test -s "$prefix/share/$f"
done

library=$(dirname "$(find "$prefix" -name libquern.a)")
export PKG_CONFIG_PATH=$library/pkgconfig
flags="-std=c17 -Wall -Werror tests/install/open.c $(pkg-config --define-variable=prefix="$prefix" --cflags quern)"
shared=$(pkg-config --define-variable=prefix="$prefix" --libs quern)
static=$(pkg-config --define-variable=prefix="$prefix" --libs --static quern)
gcc $flags -o build/check/open-shared $shared
LD_LIBRARY_PATH=$library build/check/open-shared
gcc $flags -o build/check/open-static "$library/libquern.a" ${static//-lquern/}
build/check/open-static
for example in docs/examples/*.c; do
    name=build/check/example-$(basename "$example" .c)
    gcc ${flags/tests\/install\/open.c/$example} -o "$name" $shared
    status=0
    LD_LIBRARY_PATH=$library "$name" 2>/dev/null || status=$?
    test "$status" = 2 # it says how it is used
done

# The shared object shows what quern.h declares, and nothing else.
shown=$(nm -D --defined-only "$library/libquern.so" | awk '{print $3}' | sort)
declared=$(grep -o 'quern_[a-z_]*(' include/quern.h | tr -d '(' | sort -u)
for symbol in $shown; do grep -qxF "$symbol" <<<"$declared" || { echo "exported but not declared: $symbol"; exit 1; }; done
test -n "$shown"
