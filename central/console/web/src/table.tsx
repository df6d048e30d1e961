import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { Icon, memo } from "./ui.tsx";

export type Column<T> = {
  head: string;
  cell: (row: T) => ComponentChildren;
  /** What to sort by; left out, the column does not sort. */
  by?: (row: T) => string | number;
  num?: boolean;
  /** Not shown on narrow screens. */
  extra?: boolean;
};

const Row = memo(({ row, columns }: { row: unknown; columns: Column<unknown>[] }) => (
  <tr role="row">
    {columns.map((c) => (
      <td key={c.head} role="cell" data-head={c.head} class={`${c.num ? "num" : ""} ${c.extra ? "extra" : ""}`}>
        {c.cell(row)}
      </td>
    ))}
  </tr>
));

type Props<T> = { label: string; rows: T[]; columns: Column<T>[]; id: (row: T) => string; size?: number; sort?: number; down?: boolean; empty?: ComponentChildren };

/**
 * A table that sorts by its headings and shows a page at a time, so that thousands of rows cost no more than one page.
 * A row is made anew when it or the columns are other ones: give columns that stay the same while nothing else changes.
 * On a phone each row becomes a card; the roles keep it a table for screen readers.
 */
export function DataTable<T>({ label, rows, columns, id, size = 50, sort = 0, down = false, empty }: Props<T>) {
  const [order, setOrder] = useState({ column: sort, down });
  const [page, setPage] = useState(0);
  const by = columns[order.column]?.by;
  const sorted = useMemo(() => {
    if (!by) return rows;
    const keyed = rows.map((row) => ({ row, key: by(row), id: id(row) }));
    const sign = order.down ? -1 : 1;
    keyed.sort((a, b) => (a.key < b.key ? -sign : a.key > b.key ? sign : a.id < b.id ? -1 : 1));
    return keyed.map((k) => k.row);
  }, [rows, order.column, order.down]);
  const pages = Math.max(1, Math.ceil(sorted.length / size));
  const at = Math.min(page, pages - 1);
  if (!rows.length && empty) return <>{empty}</>;
  return (
    <>
      <table role="table" aria-label={label} aria-rowcount={rows.length + 1}>
        <thead role="rowgroup">
          <tr role="row">
            {columns.map((c, i) => (
              <th key={c.head} role="columnheader" scope="col" class={`${c.num ? "num" : ""} ${c.extra ? "extra" : ""}`} aria-sort={c.by && i === order.column ? (order.down ? "descending" : "ascending") : undefined}>
                {c.by ? (
                  <button type="button" onClick={() => (setPage(0), setOrder({ column: i, down: i === order.column ? !order.down : false }))}>
                    {c.head}
                    <span class="sort" aria-hidden="true">{i === order.column ? (order.down ? "↓" : "↑") : ""}</span>
                  </button>
                ) : c.head || <span class="sr">Actions</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {sorted.slice(at * size, (at + 1) * size).map((row) => (
            <Row key={id(row)} row={row} columns={columns as Column<unknown>[]} />
          ))}
        </tbody>
      </table>
      {pages > 1 && (
        <nav class="pager" aria-label={`Pages of ${label}`}>
          <span class="dim">
            {at * size + 1}–{Math.min((at + 1) * size, sorted.length)} of {sorted.length.toLocaleString("en")}
          </span>
          <button type="button" class="button plain" aria-label="Previous page" disabled={at === 0} onClick={() => setPage(at - 1)}><Icon name="left" /></button>
          <button type="button" class="button plain" aria-label="Next page" disabled={at === pages - 1} onClick={() => setPage(at + 1)}><Icon name="right" /></button>
        </nav>
      )}
    </>
  );
}
