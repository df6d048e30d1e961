/** 512 MiB, 16 GiB, 1.5 TiB */
export function mib(n: number): string {
  if (n < 1024) return `${n} MiB`;
  const g = n / 1024;
  if (g < 1024) return `${trim(g)} GiB`;
  return `${trim(g / 1024)} TiB`;
}

function trim(n: number): string {
  return n >= 100 || Number.isInteger(n) ? String(Math.round(n)) : n.toFixed(1).replace(/\.0$/, "");
}

/** 7 ms, 0.9 s, 41 s, 2 min 5 s */
export function ms(n: number): string {
  if (n < 100) return `${Math.round(n)} ms`;
  if (n < 9950) return `${(n / 1000).toFixed(1)} s`;
  return span(n);
}

/** 41 s, 2 min 5 s, 3 h, 2 d 4 h: two units at most, the second only where it matters. */
export function span(n: number): string {
  const s = Math.max(0, Math.round(n / 1000));
  const [d, h, m] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  if (d) return d < 7 && h ? `${d} d ${h} h` : `${d} d`;
  if (h) return h < 10 && m ? `${h} h ${m} min` : `${h} h`;
  if (m) return m < 5 && s % 60 ? `${m} min ${s % 60} s` : `${m} min`;
  return `${s} s`;
}

/** 41 s, 3 min, 2 h, 5 d: one unit, to the nearest. */
export function about(n: number): string {
  const s = Math.abs(n) / 1000;
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 90 * 60) return `${Math.round(s / 60)} min`;
  if (s < 36 * 3600) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

/** just now, 41 s ago, in 3 h */
export function ago(at: number, now: number): string {
  const d = now - at;
  if (Math.abs(d) < 1500) return "just now";
  return d > 0 ? `${about(d)} ago` : `in ${about(d)}`;
}

export const count = (n: number, one: string, many = one + "s") => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

export const percent = (part: number, whole: number) => (whole > 0 ? Math.round((part / whole) * 100) : 0);

const seconds: Record<string, number> = { s: 1, m: 60, min: 60, h: 3600, d: 86400, w: 604800 };

/** Reads 90, 90s, 15m, 2h, 1d12h as seconds; null when it is none of these. */
export function duration(text: string): number | null {
  const t = text.trim().toLowerCase().replace(/\s+/g, "");
  if (/^\d+$/.test(t)) return Number(t);
  let sum = 0;
  let rest = t;
  while (rest) {
    const part = /^(\d+)(min|[smhdw])/.exec(rest);
    if (!part) return null;
    sum += Number(part[1]) * seconds[part[2]!]!;
    rest = rest.slice(part[0].length);
  }
  return t ? sum : null;
}

/** 45 s, 1 h 30 min, 7 d 12 h: the whole of it, as duration reads it back. */
export function exact(secs: number): string {
  const parts: string[] = [];
  let rest = secs;
  for (const unit of ["d", "h", "min", "s"]) {
    const n = Math.floor(rest / seconds[unit]!);
    if (n) parts.push(`${n} ${unit}`);
    rest -= n * seconds[unit]!;
  }
  return parts.join(" ") || "0 s";
}

/** Reads 512, 512M, 16G, 16GiB as MiB; null when it is none of these. */
export function memory(text: string): number | null {
  const part = /^\s*(\d+(?:\.\d+)?)\s*([mgt])?(?:i?b)?\s*$/i.exec(text);
  if (!part) return null;
  return Math.round(Number(part[1]) * ({ g: 1024, t: 1024 * 1024 }[(part[2] ?? "m").toLowerCase()] ?? 1));
}

/** Splits a command line into words as a shell would, without doing anything else that a shell does. */
export function words(line: string): string[] | null {
  const out: string[] = [];
  let word = "";
  let open = "";
  let any = false;
  for (let i = 0; i < line.length; i++) {
    const c = line[i]!;
    if (open) {
      if (c === open) open = "";
      else if (c === "\\" && open === '"' && i + 1 < line.length) word += line[++i];
      else word += c;
    } else if (c === '"' || c === "'") (open = c), (any = true);
    else if (c === "\\" && i + 1 < line.length) (word += line[++i]), (any = true);
    else if (/\s/.test(c)) {
      if (any) out.push(word);
      (word = ""), (any = false);
    } else (word += c), (any = true);
  }
  if (open) return null;
  if (any) out.push(word);
  return out;
}

/** Reads KEY=VALUE, KEY=VALUE; null when a part has no =. */
export function labels(text: string): Record<string, string> | null {
  const out: Record<string, string> = {};
  for (const part of text.split(/[,\n]/).map((p) => p.trim()).filter(Boolean)) {
    const at = part.indexOf("=");
    if (at < 1) return null;
    out[part.slice(0, at).trim()] = part.slice(at + 1).trim();
  }
  return out;
}

export const showLabels = (l: Record<string, string>) => Object.entries(l).map(([k, v]) => `${k}=${v}`).join(", ");

/** Millionths of a currency as money. */
export function money(micros: number, currency: string | null): string {
  const n = (micros / 1e6).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  return currency ? `${n} ${currency}` : n;
}

/** Why a launch booted instead of taking a warm VM, as a sentence. */
export function coldReason(reason: string | undefined, pool?: string): string {
  switch (reason) {
    case undefined:
    case "":
    case "no_pool":
      return "no warm pool has VMs of this image and size";
    case "pool_empty":
      return pool ? `warm pool ${pool} had no VM ready` : "the warm pool had no VM ready";
    case "rename_failed":
      return "its host could not hand over the warm VM";
    case "node":
    case "nodeSelector":
    case "node_selector":
      return "the pool's ready VMs are on other hosts";
  }
  return `${reason} is something that only a fresh boot can have`;
}

/** What the API counts hosts by when none fits, as words. */
export function reasons(r: Record<string, number> | undefined): string {
  const say: Record<string, string> = {
    label: "without the labels", cpu: "without enough vCPUs", memory: "without enough memory", pressure: "under memory pressure",
    macos_limit: "at two macOS guests", leased: "leased to others", cordoned: "cordoned", scrub: "being scrubbed", image: "without the image",
    backend: "that cannot run it", unhealthy: "not healthy", start_limit: "starting enough already",
  };
  return Object.entries(r ?? {}).filter(([, n]) => n > 0).map(([k, n]) => `${count(n, "host")} ${say[k] ?? k}`).join(", ");
}

/** The address of a page of the console. */
export const link = (...parts: string[]) => "#/" + parts.map(encodeURIComponent).join("/");

/** An image by the name that people know, and the one to launch it by. */
export const imageTitle = (i: { name: string; title?: string | null }) => (i.title && i.title !== i.name ? `${i.title} (${i.name})` : i.name);
