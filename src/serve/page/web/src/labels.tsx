// What people say of rows: marks and notes.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { type Label, type Labels, type Mark, Problem, address, tell } from "./api";
import { Facts, Told, Waiting, useAnswer, useKeys } from "./common";
import { count, moment, visible } from "./format";
import { change, go, href, isBundle, link, place } from "./route";

const AUTHOR = "searchmill-author";
const MARKS: [Mark, string, string][] = [
  ["good", "✓", "Good"],
  ["bad", "✕", "Bad"],
  ["unsure", "?", "Unsure"],
];

export function MarkView({ mark }: { mark: Mark | null }): JSX.Element | null {
  const found = MARKS.find(([name]) => name === mark);
  return found ? (
    <span class={`mark m-${found[0]}`}>
      <span aria-hidden="true">{found[1]}</span> {found[2].toLowerCase()}
    </span>
  ) : null;
}

/** The labels of a row, and the reader's own. */
export function RowLabels({ run, node, port, artifact, row }: { run: string; node: string; port: string; artifact: string; row: string }): JSX.Element | null {
  const { value, problem, again } = useAnswer<Labels>(address(["labels"], { artifact, row }));
  const [author, setAuthor] = useState(localStorage.getItem(AUTHOR) ?? "");
  const [note, setNote] = useState<string | null>(null);
  const [failed, setFailed] = useState<Problem | null>(null);
  const box = useRef<HTMLDetailsElement>(null);
  useKeys({
    l: () => {
      if (!box.current) return;
      box.current.open = true;
      box.current.querySelector<HTMLElement>(author ? "button" : "input")?.focus();
    },
  });
  const labels = value?.labels ?? [];
  const own = labels.find((label) => label.author === author.trim());
  const written = note ?? own?.note ?? "";
  const send = (mark: Mark | null): void => {
    const name = author.trim();
    if (!name) {
      setFailed(new Problem("Write your name first: labels of several people stand side by side.", null, 0));
      return;
    }
    localStorage.setItem(AUTHOR, name);
    tell<Label>(address(["labels"]), { run, node, port, row, mark, note: written, author: name }).then(
      () => {
        setFailed(null);
        setNote(null);
        again();
      },
      (error: unknown) => setFailed(error instanceof Problem ? error : new Problem(String(error), null, 0)),
    );
  };
  if (isBundle && labels.length === 0) return null;
  return (
    <details class="labels" ref={box} open={labels.length > 0}>
      <summary>
        Labels <kbd>l</kbd>
        {labels.length > 0 && <span class="quiet">{` ${count(labels.length)}`}</span>}
      </summary>
      {problem && <Told problem={problem} again={again} />}
      {labels.length > 0 && (
        <ul class="plain">
          {labels.map((label) => (
            <li key={label.author}>
              <MarkView mark={label.mark} /> <b>{visible(label.author)}</b> {visible(label.note)}{" "}
              <span class="quiet">{moment(label.time)}</span>
            </li>
          ))}
        </ul>
      )}
      {!isBundle && (
        <>
          <div class="bar">
            <label>
              Your name <input value={author} maxLength={100} onInput={(event) => setAuthor(event.currentTarget.value)} />
            </label>
            {MARKS.map(([mark, sign, name]) => (
              <button key={mark} type="button" aria-pressed={own?.mark === mark} onClick={() => send(own?.mark === mark ? null : mark)}>
                <span aria-hidden="true">{sign}</span> {name}
              </button>
            ))}
          </div>
          <div class="bar">
            <label class="wide">
              Note{" "}
              <textarea
                rows={2}
                maxLength={10_000}
                value={written}
                onInput={(event) => setNote(event.currentTarget.value)}
                onKeyDown={(event) => {
                  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(own?.mark ?? null);
                }}
              />
            </label>
            <button type="button" onClick={() => send(own?.mark ?? null)} disabled={note === null || note === (own?.note ?? "")}>
              Save the note
            </button>
          </div>
        </>
      )}
      {failed && <Told problem={failed} />}
    </details>
  );
}

/** All labels of the store. */
export function LabelsPage(): JSX.Element {
  const { value, problem, again } = useAnswer<Labels>(address(["labels"]));
  useKeys({ Escape: () => go(href("/")) });
  useEffect(() => {
    document.title = "Labels · searchmill";
  }, []);
  if (problem) return <Told problem={problem} again={again} />;
  if (!value) return <Waiting />;
  const query = place.value.query;
  const [mark, author] = [query.get("mark") ?? "", query.get("author") ?? ""];
  const authors = [...new Set(value.labels.map((label) => label.author))].sort();
  const shown = value.labels.filter((label) => (!mark || label.mark === mark) && (!author || label.author === author));
  const save = (): void => {
    const lines = shown.map((label) => `${JSON.stringify(label)}\n`).join("");
    const file = document.createElement("a");
    file.href = URL.createObjectURL(new Blob([lines], { type: "application/jsonl" }));
    file.download = "labels.jsonl";
    file.click();
    URL.revokeObjectURL(file.href);
  };
  return (
    <main>
      <h1>Labels</h1>
      <Facts facts={[["Labels", count(value.labels.length)], ["Damaged", value.damaged > 0 ? `${count(value.damaged)} lines of labels.jsonl` : ""]]} />
      {value.labels.length === 0 ? (
        <p class="note">
          Nobody has labelled a row. Open a row and press <kbd>l</kbd>.
        </p>
      ) : (
        <>
          <div class="bar">
            <label>
              Mark{" "}
              <select value={mark} onChange={(event) => change({ mark: event.currentTarget.value }, true)}>
                <option value="">all</option>
                {MARKS.map(([name, , title]) => (
                  <option key={name} value={name}>
                    {title.toLowerCase()}
                  </option>
                ))}
              </select>
            </label>
            <label>
              By{" "}
              <select value={author} onChange={(event) => change({ author: event.currentTarget.value }, true)}>
                <option value="">all</option>
                {authors.map((name) => (
                  <option key={name} value={name}>
                    {name}
                  </option>
                ))}
              </select>
            </label>
            <span class="quiet" role="status">{`${count(shown.length)} of ${count(value.labels.length)}`}</span>
            <button type="button" onClick={save}>
              Download as JSONL
            </button>
          </div>
          <div class="scroll" tabIndex={0}>
            <table class="list">
              <thead>
                <tr>
                  <th scope="col">Row</th>
                  <th scope="col">Mark</th>
                  <th scope="col">Note</th>
                  <th scope="col">By</th>
                  <th scope="col">Node</th>
                  <th scope="col">Run</th>
                  <th scope="col">When</th>
                </tr>
              </thead>
              <tbody>
                {shown.map((label) => (
                  <tr key={label.artifact + label.row + label.author}>
                    <th scope="row">
                      <a href={rowOf(label)}>{visible(label.row)}</a>
                    </th>
                    <td>
                      <MarkView mark={label.mark} />
                    </td>
                    <td class="why">{visible(label.note)}</td>
                    <td>{visible(label.author)}</td>
                    <td>
                      <a href={link(["r", label.run, "n", label.node])}>{label.node}</a>
                    </td>
                    <td>
                      <a href={link(["r", label.run])}>{label.run}</a>
                    </td>
                    <td>{moment(label.time)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
    </main>
  );
}

function rowOf(label: Label): string {
  const place = label.row.startsWith("#") ? { at: label.row.slice(1) } : { id: label.row };
  return link(["r", label.run, "n", label.node, "row"], { port: label.port, ...place });
}
