import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { onSignedOut, Problem, token } from "./api.ts";
import { link as state, start, stop, nodes, pools, vms, leases, cluster } from "./live.ts";
import { link, route } from "./route.ts";
import { me, signOut, whoIs } from "./session.ts";
import { attention } from "./health.ts";
import { Confirm, Icon, type IconName, Toasts } from "./ui.tsx";
import { SignIn } from "./pages/signin.tsx";
import { Overview } from "./pages/overview.tsx";
import { Pools } from "./pages/pools.tsx";
import { VMs } from "./pages/vms.tsx";
import { OneVM } from "./pages/vm.tsx";
import { Host, Hosts } from "./pages/hosts.tsx";
import { Leases } from "./pages/leases.tsx";
import { OneTenant } from "./pages/tenant.tsx";
import { ActivityLog } from "./pages/activity.tsx";
import { ClusterPage } from "./pages/cluster.tsx";

type Entry = { page: string; title: string; icon: IconName; operator?: boolean; count?: () => number | undefined };

const menu: Entry[] = [
  { page: "", title: "Overview", icon: "overview" },
  { page: "pools", title: "Warm pools", icon: "pools", count: () => pools.value?.length },
  { page: "vms", title: "Virtual machines", icon: "vms", count: () => vms.value?.length },
  { page: "hosts", title: "Hosts", icon: "hosts", count: () => nodes.value?.length },
  { page: "leases", title: "Leases and tenants", icon: "tenants", count: () => leases.value?.filter((l) => l.state !== "ended").length },
  { page: "activity", title: "Activity", icon: "activity" },
  { page: "cluster", title: "Cluster", icon: "cluster", operator: true },
];

const sections: Record<string, string> = { tenants: "leases" };

function Content() {
  const { page, rest } = route.value;
  switch (page) {
    case "pools":
      return <Pools />;
    case "vms":
      return rest[0] ? <OneVM key={rest[0]} id={rest[0]} /> : <VMs />;
    case "hosts":
      return rest[0] ? <Host key={rest[0]} name={rest[0]} /> : <Hosts />;
    case "leases":
      return <Leases />;
    case "tenants":
      return rest[0] ? <OneTenant key={rest[0]} name={rest[0]} /> : <Leases />;
    case "activity":
      return <ActivityLog />;
    case "cluster":
      return me.value?.side === "operator" ? <ClusterPage /> : <Overview />;
  }
  return <Overview />;
}

const linkWords = {
  connecting: ["warn", "Connecting…"],
  live: ["ok", "Live"],
  polling: ["warn", "Updated every few seconds"],
  offline: ["bad", "No answer"],
} as const;

function Link() {
  const [tone, words] = linkWords[state.value];
  return (
    <p class={`tag ${tone} link`} role="status" title={state.value === "live" ? "Changes arrive as they happen" : undefined}>
      <i class="mark" aria-hidden="true" />
      {words}
    </p>
  );
}

type Theme = "" | "light" | "dark";

function ThemeButton() {
  const [theme, setTheme] = useState<Theme>((document.documentElement.dataset.theme as Theme) ?? "");
  const next: Theme = theme === "" ? "dark" : theme === "dark" ? "light" : "";
  const turn = () => {
    setTheme(next);
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    try {
      next ? localStorage.setItem("fluxvm.theme", next) : localStorage.removeItem("fluxvm.theme");
    } catch {
      // it holds for this page only
    }
  };
  const name = { "": "as the system", light: "light", dark: "dark" };
  return (
    <button type="button" class="icon-button" onClick={turn} title={`Theme: ${name[theme]}`} aria-label={`Theme: ${name[theme]}. Change to ${name[next]}`}>
      <Icon name="theme" />
    </button>
  );
}

/** When the replica behind this page is gone, the others are a click away. Their addresses were learnt while it was there. */
function Lost() {
  const [long, setLong] = useState(false);
  const off = state.value === "offline" || state.value === "connecting" && vms.value !== null;
  useEffect(() => {
    setLong(false);
    if (!off) return;
    const t = setTimeout(() => setLong(true), 4000);
    return () => clearTimeout(t);
  }, [off]);
  if (!off || !long) return null;
  const others = (cluster.value?.replicas ?? []).filter((r) => /^https?:\/\//.test(r.url) && !(r.url + "/").startsWith(location.origin + "/"));
  return (
    <div class="banner bad" role="alert">
      <p>
        <strong>This replica does not answer.</strong> The page keeps trying; what you see is how it was.
        {others.length > 0 && " The console is on the other replicas, too:"}
      </p>
      {others.map((r) => <a key={r.name} class="button plain" href={r.url.replace(/\/$/, "") + "/console/"} rel="noreferrer">{r.name}</a>)}
    </div>
  );
}

function Shell() {
  const [open, setOpen] = useState(false);
  const main = useRef<HTMLElement>(null);
  const { page } = route.value;
  const path = [page, ...route.value.rest].join("/");
  const at = sections[page] ?? page;
  const first = useRef(true);
  useEffect(() => {
    setOpen(false);
    if (first.current) first.current = false;
    else {
      main.current?.querySelector<HTMLElement>("h1")?.focus({ preventScroll: true }); // so that a screen reader says where one is
      scrollTo(0, 0);
    }
    document.title = (menu.find((m) => m.page === at)?.title ?? "Overview") + " · FluxVM fleet";
  }, [path]);
  const who = me.value!;
  const trouble = attention.value.length;
  return (
    <div class="shell">
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), main.current?.focus())}>Skip to the content</a>
      <aside>
        <div class="brand">
          <img src="icon.svg" alt="" width="28" height="28" />
          <strong>FluxVM fleet</strong>
          <button type="button" class="icon-button menu" aria-expanded={open} aria-controls="menu" aria-label="Menu" onClick={() => setOpen(!open)}>
            <Icon name={open ? "close" : "menu"} />
          </button>
        </div>
        <div id="menu" class={open ? "open" : ""}>
          <nav aria-label="Pages">
            {menu.filter((m) => !m.operator || who.side === "operator").map((m) => {
              const n = m.count?.();
              return (
                <a key={m.page} href={link(...(m.page ? [m.page] : []))} aria-current={m.page === at ? "page" : undefined}>
                  <Icon name={m.icon} />
                  {m.title}
                  {m.page === "" && trouble > 0 && <span class="count bad" aria-label={`${trouble} need attention`}>{trouble}</span>}
                  {n !== undefined && <span class="count" aria-hidden="true">{n.toLocaleString("en")}</span>}
                </a>
              );
            })}
          </nav>
          <div class="who">
            <Link />
            <div>
              <p>
                <strong>{who.tenant ?? "Operator"}</strong>
                <span class="dim">{who.side === "tenant" ? "tenant" : "whole fleet"}{who.writes ? "" : " · may look only"}</span>
              </p>
              <ThemeButton />
              <button type="button" class="icon-button" aria-label="Sign out" title="Sign out" onClick={() => (stop(), signOut())}>
                <Icon name="out" />
              </button>
            </div>
          </div>
        </div>
      </aside>
      <main id="main" ref={main} tabIndex={-1}>
        <Lost />
        <Content />
      </main>
    </div>
  );
}

function App() {
  const [why, setWhy] = useState("");
  const [resuming, setResuming] = useState(token.peek() !== null);
  useEffect(() => {
    onSignedOut((words) => {
      stop();
      signOut();
      setWhy(words);
    });
    if (!token.peek()) return;
    void (async () => {
      for (;;) {
        try {
          me.value = await whoIs(token.peek()!);
          break;
        } catch (e) {
          if (!(e instanceof Problem) || e.status !== 0 && e.status < 500) {
            signOut();
            setWhy(e instanceof Error ? e.message : String(e));
            break;
          }
          setWhy(e.message);
        }
      }
      setResuming(false);
    })();
  }, []);
  const signedIn = me.value !== null;
  useEffect(() => {
    if (signedIn) start();
  }, [me.value]);
  return (
    <>
      {signedIn ? <Shell /> : <SignIn why={why} resuming={resuming} done={() => setWhy("")} />}
      <Confirm />
      <Toasts />
    </>
  );
}

render(<App />, document.getElementById("app")!);
