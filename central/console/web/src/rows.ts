/** What every row of the API carries: the index of its last change. */
export type Versioned = { version: number };

/** A row that says the same stays the same object, so that what shows it need not be made anew. */
const same = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b);

/** Rows by key, shown through a signal. An older version never replaces a newer one. */
export class Rows<T extends Versioned> {
  private rows = new Map<string, T>();
  private removed = new Map<string, number>();
  private dirty = false;
  constructor(
    private out: { value: T[] | null },
    private key: (row: T) => string,
  ) {}
  fill(items: T[]) {
    const next = new Map<string, T>();
    for (const row of items) {
      const key = this.key(row);
      if ((this.removed.get(key) ?? -1) >= row.version) continue; // the list was older than what an event said
      const have = this.rows.get(key);
      next.set(key, have && (have.version > row.version || same(have, row)) ? have : row);
    }
    this.rows = next;
    this.removed.clear();
    this.dirty = true;
    this.show();
  }
  put(row: T) {
    const key = this.key(row);
    const have = this.rows.get(key);
    if (have && (have.version > row.version || same(have, row))) return;
    this.rows.set(key, row);
    this.removed.delete(key);
    this.dirty = true;
  }
  drop(row: T) {
    const key = this.key(row);
    this.removed.set(key, row.version);
    this.rows.delete(key);
    this.dirty = true;
  }
  forget(key: string) {
    if (this.rows.delete(key)) this.dirty = true;
  }
  show() {
    if (!this.dirty) return;
    this.dirty = false;
    this.out.value = [...this.rows.values()];
  }
  clear() {
    this.rows.clear();
    this.removed.clear();
    this.dirty = false;
    this.out.value = null;
  }
}
