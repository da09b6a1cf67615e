"""schemathesis against <BASE_URL>/openapi.json: generated requests to every operation; no server error, no undocumented status, content type or body. Exit 0 = all passed."""
import json, os, re, subprocess, sys, tempfile
from importlib.metadata import version
root, token, account, model = (os.environ[k] for k in ("BASE_URL", "API_TOKEN", "ACCOUNT_ID", "CHAT_MODEL"))
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
READY = '[[operations]]\ninclude-path = "/readyz"\nchecks.not_a_server_error.expected-statuses = ["2xx", "4xx", 503]\n'  # of a model that is not there
with tempfile.TemporaryDirectory() as folder:
    with open(folder + "/schemathesis.toml", "w") as f: f.write(f'[parameters]\n"path.account_id" = {json.dumps(account)}\n"path.model" = {json.dumps(model)}\n' + READY)
    done = subprocess.run([os.path.join(os.path.dirname(sys.executable), "schemathesis"), "run", root + "/openapi.json", "--header", "Authorization: Bearer " + token, "--checks", CHECKS, "--phases", "examples,fuzzing", "--max-examples", os.environ.get("EXAMPLES", "20"), "--suppress-health-check", "all", "--no-color"], cwd=folder, capture_output=True, text=True)
if done.returncode and os.environ.get("VERBOSE"): print(done.stdout[-8000:], done.stderr[-2000:], file=sys.stderr)
failures = [" ".join(line.split())[:120] for line in done.stdout.splitlines() if re.match(r"^- |^\s+(❌|🚫)", line)]
cases = re.search(r"(\d+) generated.*", done.stdout)
print(f"{'FAIL' if done.returncode else 'PASS'} schemathesis {version('schemathesis')} {cases[0] if cases else 'no cases'}" + "".join(" | " + f for f in failures[:8])); sys.exit(bool(done.returncode))
