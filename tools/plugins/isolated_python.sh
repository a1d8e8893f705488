# Sourced with a Python script and its arguments, by the steps of action.yml and the hook: run the script isolated (-I), by a
# Python that is no part of the checkout. Folders of PATH that are relative or lie in the workspace are left out, for the
# checkout may hold a python3 or a helm of its own. For bash 3.2 and later.
set -euo pipefail
workspace=${GITHUB_WORKSPACE:-/nonexistent}
is_of_checkout() {
  case $1 in
    "$workspace" | "$workspace"/* | "$real_workspace" | "$real_workspace"/* | [!/]* | "") return 0 ;;
  esac
  return 1
}
real_workspace=$(cd -P -- "$workspace" 2>/dev/null && pwd) || real_workspace=$workspace
clean=
while IFS= read -r -d : folder; do
  is_of_checkout "$folder" || clean=$clean${clean:+:}$folder
done <<<"$PATH:"
export PATH=$clean
python=$(type -P -- "${PYTHON:-python3}") || python=
folder=$(cd -P -- "${python%/*}" 2>/dev/null && pwd) || folder=
if is_of_checkout "$python" || is_of_checkout "$folder"; then
  echo "kvgate: ${PYTHON:-python3} is not there, or part of the checkout, which is not run: name another Python by its full path" \
    "(input \`python\` of the Action, variable KVGATE_PYTHON of the hook)" >&2
  exit 2
fi
exec "$python" -I "$@"
