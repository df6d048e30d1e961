import { signal } from "@preact/signals";
import { Component, type ComponentChildren, type ComponentType, type JSX } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { clockSkew, Problem } from "./api.ts";
import { ago, reasons, span } from "./format.ts";

/** A component that is made anew only when its props, one by one, are other ones. */
export function memo<P extends object>(Of: (props: P) => JSX.Element): ComponentType<P> {
  return class extends Component<P> {
    override shouldComponentUpdate(next: P) {
      return Object.entries(next).some(([k, v]) => v !== (this.props as Record<string, unknown>)[k]);
    }
    override render() {
      return <Of {...(this.props as P)} />;
    }
  };
}

// ---- words and marks ----

export type Tone = "ok" | "warn" | "bad" | "info" | "quiet";

export const Tag = ({ tone = "quiet", children, title }: { tone?: Tone; children: ComponentChildren; title?: string }) => (
  <span class={`tag ${tone}`} title={title}>
    <i class="mark" aria-hidden="true" />
    {children}
  </span>
);

const paths = {
  overview: "M3 3h6v7H3zM11 3h6v4h-6zM11 9h6v8h-6zM3 12h6v5H3z",
  pools: "M10 3c3 3 5 5.5 5 8.5a5 5 0 0 1-10 0C5 8.500 7 6 10 3z",
  vms: "M3 4h14v9H3zM7 17h6M10 13v4",
  hosts: "M3 3h14v5H3zM3 12h14v5H3zM6 5.500h.01M6 14.500h.01",
  tenants: "M5 3h8l3 3v11H5zM8 9h5M8 12h5",
  activity: "M3 10h3l2.500-6 3 12 2.500-6h3",
  cluster: "M10 3v4M10 13a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM4 17l3.500-5M16 17l-3.500-5",
  plus: "M10 4v12M4 10h12",
  menu: "M3 5h14M3 10h14M3 15h14",
  close: "M5 5l10 10M15 5L5 15",
  theme: "M10 3a7 7 0 1 0 0 14zM10 3a7 7 0 0 1 0 14",
  out: "M8 3H4v14h4M9 10h8M14 7l3 3-3 3",
  left: "M12 4l-6 6 6 6",
  right: "M8 4l6 6-6 6",
  copy: "M7 7h9v9H7zM4 13V4h9",
};
export type IconName = keyof typeof paths;

export const Icon = ({ name }: { name: IconName }) => (
  <svg class="icon" viewBox="0 0 20 20" aria-hidden="true">
    <path d={paths[name]} />
  </svg>
);

/** The server's clock, a step every few seconds. */
export const now = signal(Date.now());
setInterval(() => document.hidden || (now.value = Date.now() + clockSkew.peek()), 1000);

export function Ago({ at, none = "never" }: { at: string | null | undefined; none?: string }) {
  if (!at) return <span class="dim">{none}</span>;
  const t = Date.parse(at);
  return (
    <time dateTime={at} title={new Date(t).toLocaleString()}>
      {ago(t, now.value)}
    </time>
  );
}

/** What is left until then, or the words for when it has come. */
export function Until({ at, past }: { at: string; past: string }) {
  const left = Date.parse(at) - now.value;
  return <time dateTime={at} title={new Date(at).toLocaleString()}>{left > 500 ? `in ${span(left)}` : past}</time>;
}

export const Bar = ({ value, max, label, tone }: { value: number; max: number; label: string; tone?: Tone | "plain" }) => {
  const share = max > 0 ? Math.min(1, value / max) : 0;
  return (
    <div class={`bar ${tone ?? (share > 0.9 ? "warn" : "")}`} role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={max} aria-valuenow={Math.min(value, max)}>
      <i style={{ width: `${share * 100}%` }} />
    </div>
  );
};

export const Skeleton = ({ lines = 3 }: { lines?: number }) => (
  <div class="skeleton" role="status" aria-label="Loading">
    {Array.from({ length: lines }, (_, i) => <i key={i} />)}
  </div>
);

export const Empty = ({ title, children, action }: { title: string; children?: ComponentChildren; action?: ComponentChildren }) => (
  <div class="empty">
    <h2>{title}</h2>
    {children && <p>{children}</p>}
    {action}
  </div>
);

/** A refusal in the API's own words. */
export function Refusal({ error }: { error: unknown }) {
  if (!error) return null;
  const p = error instanceof Problem ? error : null;
  const why = reasons(p?.body.reasons);
  return (
    <div class="refusal" role="alert">
      <p>{error instanceof Error ? error.message : String(error)}</p>
      {why && <p class="dim">{why}</p>}
      {p?.body.request_id && <p class="dim small">request {p.body.request_id}</p>}
    </div>
  );
}

export const Page = ({ title, note, actions, children, back }: { title: ComponentChildren; note?: ComponentChildren; actions?: ComponentChildren; children: ComponentChildren; back?: { href: string; text: string } }) => (
  <>
    <header class="page-head">
      <div>
        {back && <a class="back" href={back.href}><Icon name="left" />{back.text}</a>}
        <h1 tabIndex={-1}>{title}</h1>
        {note && <p class="dim">{note}</p>}
      </div>
      {actions && <div class="actions">{actions}</div>}
    </header>
    {children}
  </>
);

export const Panel = ({ title, actions, children, class: cls = "" }: { title?: ComponentChildren; actions?: ComponentChildren; children: ComponentChildren; class?: string }) => (
  <section class={`panel ${cls}`}>
    {title && (
      <header>
        <h2>{title}</h2>
        {actions && <div class="actions">{actions}</div>}
      </header>
    )}
    {children}
  </section>
);

/** Names and values, such as the facts of one VM. */
export const Facts = ({ of }: { of: [string, ComponentChildren][] }) => (
  <dl class="facts">
    {of.filter(([, v]) => v !== null && v !== undefined && v !== "").map(([k, v]) => (
      <div key={k}>
        <dt>{k}</dt>
        <dd>{v}</dd>
      </div>
    ))}
  </dl>
);

// ---- doing ----

type ButtonProps = Omit<JSX.IntrinsicElements["button"], "onClick" | "class" | "type"> & { kind?: "main" | "plain" | "danger" | "quiet"; act?: () => unknown | Promise<unknown>; submit?: boolean; busy?: boolean };

/** A button that is out of use while what it does goes on, and that shows a refusal as a toast. */
export function Button({ kind = "plain", act, submit, busy, children, ...rest }: ButtonProps) {
  const [doing, setDoing] = useState(false);
  const click = async () => {
    if (!act || doing) return;
    setDoing(true);
    try {
      await act();
    } catch (e) {
      refuse(e);
    } finally {
      setDoing(false);
    }
  };
  return (
    <button {...(rest as object)} type={submit ? "submit" : "button"} class={`button ${kind}`} aria-busy={doing || busy || undefined} onClick={act ? click : undefined}>
      {children}
    </button>
  );
}

type Toast = { id: number; tone: Tone; title: string; body?: string; href?: string };
const toasts = signal<Toast[]>([]);
let toastId = 0;

export function say(title: string, body?: string, opts: { tone?: Tone; href?: string } = {}) {
  const t = { id: ++toastId, tone: opts.tone ?? "ok", title, body, href: opts.href } as Toast;
  toasts.value = [...toasts.value.slice(-3), t];
  if (t.tone !== "bad") setTimeout(() => dismiss(t.id), 12_000);
}
const dismiss = (id: number) => (toasts.value = toasts.value.filter((t) => t.id !== id));

export function refuse(e: unknown) {
  const p = e instanceof Problem ? e : null;
  say(p?.body.title ?? "It did not work", [e instanceof Error ? e.message : String(e), reasons(p?.body.reasons)].filter(Boolean).join(" · "), { tone: "bad" });
}

export const Toasts = () => (
  <div class="toasts" role="region" aria-label="Messages" aria-live="polite">
    {toasts.value.map((t) => (
      <div key={t.id} class={`toast ${t.tone}`} role={t.tone === "bad" ? "alert" : undefined}>
        <i class="mark" aria-hidden="true" />
        <div>
          <strong>{t.title}</strong>
          {t.body && <p>{t.body}</p>}
          {t.href && <a href={t.href} onClick={() => dismiss(t.id)}>Open</a>}
        </div>
        <button type="button" class="icon-button" aria-label="Dismiss" onClick={() => dismiss(t.id)}>
          <Icon name="close" />
        </button>
      </div>
    ))}
  </div>
);

// ---- dialogs ----

/** A modal dialog. The browser keeps the focus inside; afterwards it goes back to where it was. */
export function Dialog({ title, close, children, wide }: { title: string; close: () => void; children: ComponentChildren; wide?: boolean }) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useLayoutEffect(() => {
    const before = document.activeElement;
    ref.current!.showModal();
    return () => setTimeout(() => before instanceof HTMLElement && before.isConnected && before.focus());
  }, []);
  return (
    <dialog ref={ref} class={wide ? "wide" : ""} aria-labelledby={id} onCancel={(e) => (e.preventDefault(), close())} onMouseDown={(e) => e.target === ref.current && close()}>
      <div class="dialog-body">
        <header>
          <h2 id={id}>{title}</h2>
          <button type="button" class="icon-button" aria-label="Close" onClick={close}>
            <Icon name="close" />
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

type Asked = { title: string; body: ComponentChildren; action: string; danger?: boolean; act: () => Promise<unknown> };
const asked = signal<Asked | null>(null);

/** Asks before something is done that cannot be undone. */
export function ask(what: Asked) {
  asked.value = what;
}

export function Confirm() {
  const what = asked.value;
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => setError(null), [what]);
  if (!what) return null;
  const close = () => (asked.value = null);
  const go = async () => {
    setBusy(true);
    try {
      await what.act();
      close();
    } catch (e) {
      setError(e);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title={what.title} close={close}>
      <div class="prose">{what.body}</div>
      <Refusal error={error} />
      <footer>
        <Button act={close} autoFocus={what.danger}>Cancel</Button>
        <Button kind={what.danger ? "danger" : "main"} act={go} busy={busy} autoFocus={!what.danger}>{what.action}</Button>
      </footer>
    </Dialog>
  );
}

/** A form in a dialog: it sends, and shows what is refused beside what was typed. */
export function FormDialog({ title, action, send, close, children, wide }: { title: string; action: string; send: () => Promise<void | "stay">; close: () => void; children: (error: Problem | null) => ComponentChildren; wide?: boolean }) {
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const submit = async (e: Event) => {
    e.preventDefault();
    if (busy) return;
    setBusy(true);
    setError(null);
    try {
      if ((await send()) !== "stay") close();
    } catch (e) {
      setError(e);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} close={close} wide={wide}>
      <form onSubmit={submit} noValidate>
        <div class="fields">{children(error instanceof Problem ? error : null)}</div>
        <Refusal error={error} />
        <footer>
          <Button act={close}>Cancel</Button>
          <Button kind="main" submit busy={busy}>{action}</Button>
        </footer>
      </form>
    </Dialog>
  );
}

/** What was typed cannot be sent: said where the API would say it. */
export const mistyped = (field: string, detail: string) => new Problem(400, { detail, field, title: "Invalid request" });

type FieldProps = { label: string; hint?: ComponentChildren; error?: Problem | null; field?: string; children: (props: { id: string; "aria-describedby"?: string; "aria-invalid"?: "true" }) => ComponentChildren };

export function Field({ label, hint, error, field, children }: FieldProps) {
  const id = useId();
  const wrong = Boolean(field && `${error?.body.field ?? ""}.`.startsWith(field + "."));
  return (
    <div class={`field ${wrong ? "wrong" : ""}`}>
      <label for={id}>{label}</label>
      {children({ id, "aria-describedby": hint ? id + "h" : undefined, "aria-invalid": wrong ? "true" : undefined })}
      {hint && <p class="hint" id={id + "h"}>{hint}</p>}
    </div>
  );
}

type TextProps = Omit<FieldProps, "children"> & { value: string; set: (v: string) => void; placeholder?: string; type?: "text" | "password"; autoFocus?: boolean; inputMode?: "numeric" | "text"; mono?: boolean };

export const Text = ({ value, set, placeholder, type = "text", autoFocus, inputMode, mono, ...rest }: TextProps) => (
  <Field {...rest}>
    {(p) => <input {...p} {...({ type } as { type: "text" })} class={mono ? "mono" : ""} value={value} placeholder={placeholder} inputMode={inputMode} autoFocus={autoFocus} autoComplete="off" spellcheck={false} onInput={(e) => set(e.currentTarget.value)} />}
  </Field>
);

export const Select = ({ value, set, options, autoFocus, ...rest }: Omit<FieldProps, "children"> & { value: string; autoFocus?: boolean; set: (v: string) => void; options: { value: string; text: string }[] }) => (
  <Field {...rest}>
    {(p) => (
      <select {...p} value={value} autoFocus={autoFocus} onChange={(e) => set(e.currentTarget.value)}>
        {options.map((o) => <option key={o.value} value={o.value} selected={o.value === value}>{o.text}</option>)}
      </select>
    )}
  </Field>
);

export const Check = ({ label, hint, value, set }: { label: string; hint?: string; value: boolean; set: (v: boolean) => void }) => {
  const id = useId();
  return (
    <div class="check">
      <input id={id} type="checkbox" checked={value} aria-describedby={hint ? id + "h" : undefined} onChange={(e) => set(e.currentTarget.checked)} />
      <label for={id}>{label}</label>
      {hint && <p class="hint" id={id + "h"}>{hint}</p>}
    </div>
  );
};

/** A secret that is shown once. */
export function Secret({ value, what }: { value: string; what: string }) {
  const [copied, setCopied] = useState(false);
  const ref = useRef<HTMLElement>(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(value);
      setCopied(true);
    } catch {
      getSelection()?.selectAllChildren(ref.current!); // no clipboard on plain http: select it for Ctrl-C
    }
  };
  return (
    <div class="secret">
      <p><strong>{what}</strong> It is shown here once and kept by nobody: copy it now.</p>
      <div>
        <code ref={ref} tabIndex={0}>{value}</code>
        <Button act={copy}><Icon name="copy" />{copied ? "Copied" : "Copy"}</Button>
      </div>
    </div>
  );
}
