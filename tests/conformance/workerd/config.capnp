# A Worker whose `env.AI` is a platform of one's own: the runtime sends there what it would send to
# Cloudflare, with the platform's API token. ADDRESS, TOKEN and PORT are filled in by scenario.mjs.
using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "worker", worker = .worker),
    (name = "skerry", external = (
      address = "ADDRESS",
      http = (injectRequestHeaders = [(name = "authorization", value = "Bearer TOKEN")]),
    )),
  ],
  sockets = [(name = "http", address = "127.0.0.1:PORT", http = (), service = "worker")],
);

const worker :Workerd.Worker = (
  modules = [(name = "worker.mjs", esModule = embed "worker.mjs")],
  compatibilityDate = "2026-01-01",
  bindings = [(name = "AI", wrapped = (
    moduleName = "cloudflare-internal:ai-api",
    innerBindings = [(name = "fetcher", service = "skerry")],
  ))],
);
