using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [
    (name = "main", worker = .worker),
    (name = "storage", disk = (path = "state", writable = true)),
  ],
  sockets = [ (name = "http", address = "127.0.0.1:0", http = (), service = "main") ],
);
const worker :Workerd.Worker = (
  modules = [ (name = "worker", esModule = embed "bundle.js") ],
  compatibilityDate = "2026-11-01",
  compatibilityFlags = ["nodejs_compat"],
  durableObjectNamespaces = [ (className = "ConversationObject", uniqueKey = "conversations", enableSql = true) ],
  durableObjectStorage = (localDisk = "storage"),
  bindings = [ (name = "CONVERSATIONS", durableObjectNamespace = "ConversationObject") ],
);
