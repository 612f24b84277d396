// The page: its frame, and which view an address shows.

import { signal } from "@preact/signals";
import { type JSX, render } from "preact";
import { useState } from "preact/hooks";
import { setSource, source, takeToken } from "./api";
import { opened } from "./bundle";
import { useKeys } from "./common";
import { moment } from "./format";
import { Compare } from "./compare";
import { ArtifactPage } from "./files";
import { LabelsPage } from "./labels";
import { NodePage } from "./node";
import { Home, PipelinePage } from "./pipelines";
import { follow, href, isBundle, link, now, place } from "./route";
import { RowPage } from "./row";
import { RunPage } from "./run";
import { CompareWith } from "./with";
import "./style.css";

const THEME = "searchmill-theme";
const theme = signal(localStorage.getItem(THEME) ?? "system");

function applyTheme(): void {
  document.documentElement.dataset.theme = theme.value;
}

function nextTheme(): void {
  const all = ["system", "light", "dark"];
  theme.value = all[(all.indexOf(theme.value) + 1) % all.length] ?? "system";
  localStorage.setItem(THEME, theme.value);
  applyTheme();
}

const KEYS: [string, string][] = [
  ["j k", "next, previous"],
  ["Enter", "open"],
  ["Esc", "up"],
  ["n p", "next, previous turn"],
  ["g e", "first, last"],
  ["/", "filter"],
  ["c", "compare with another run or node"],
  ["l", "label"],
  ["y", "copy the row's id"],
  ["?", "this list"],
];

function Help({ close }: { close: () => void }): JSX.Element {
  return (
    <div class="help" role="dialog" aria-label="Keys">
      <h2>Keys</h2>
      <dl class="facts">
        {KEYS.map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <button type="button" onClick={close}>
        Close
      </button>
    </div>
  );
}

function Crumbs({ parts }: { parts: string[] }): JSX.Element {
  const [first, ...rest] = parts;
  const crumbs: [string, string][] = [];
  if (first === "p" && rest[0]) crumbs.push([rest[0], link(["p", rest[0]])]);
  if (first === "r" && rest[0]) {
    crumbs.push([rest[0], link(["r", rest[0]])]);
    if (rest[1] === "n" && rest[2]) crumbs.push([rest[2], link(["r", rest[0], "n", rest[2]])]);
    if (rest[3] === "row") crumbs.push([place.value.query.get("id") ?? "row", now()]);
  }
  if (first === "compare" || first === "labels") crumbs.push([first, now()]);
  if (first === "a" && rest[0]) crumbs.push([rest[0].slice(0, 12), link(["a", rest[0]])]);
  return (
    <nav aria-label="Where you are">
      <ol class="crumbs">
        <li>
          <a href={href("/")}>searchmill</a>
        </li>
        {crumbs.map(([name, to]) => (
          <li key={to}>
            <a href={to}>{name}</a>
          </li>
        ))}
      </ol>
    </nav>
  );
}

function View({ parts }: { parts: string[] }): JSX.Element {
  const [first, one, two, three, four] = parts;
  if (first === undefined) return <Home />;
  if (first === "p" && one) return <PipelinePage key={one} name={one} />;
  if (first === "compare") return <Compare />;
  if (first === "labels") return <LabelsPage />;
  if (first === "a" && one) return <ArtifactPage key={one} id={one} />;
  if (first === "r" && one) {
    if (two === "n" && three) {
      return four === "row" ? (
        <RowPage key={`${one}/${three}`} run={one} node={three} />
      ) : (
        <NodePage key={`${one}/${three}`} run={one} node={three} />
      );
    }
    return <RunPage key={one} run={one} />;
  }
  return (
    <main>
      <h1>There is nothing here</h1>
      <p>
        <a href={href("/")}>All pipelines</a>
      </p>
    </main>
  );
}

function App(): JSX.Element {
  const [help, setHelp] = useState(false);
  const [comparing, setComparing] = useState(false);
  const parts = place.value.path.split("/").filter(Boolean).map(decodeURIComponent);
  const run = parts[0] === "r" ? parts[1] : undefined;
  const node = run && parts[2] === "n" ? parts[3] : undefined;
  useKeys({
    "?": () => setHelp((open) => !open),
    ...(run ? { c: () => setComparing((open) => !open) } : {}),
  });
  return (
    // Links are followed here; everything that acts has an element of its own.
    <div class="frame" onClick={follow}>
      <a class="skip" href="#content">
        To the content
      </a>
      <header>
        <Crumbs parts={parts} />
        <div class="tools">
          <a href={href("/labels")}>Labels</a>
          {run && (
            <button type="button" onClick={() => setComparing((open) => !open)} aria-expanded={comparing}>
              Compare <kbd>c</kbd>
            </button>
          )}
          <button type="button" onClick={() => setHelp((open) => !open)} aria-expanded={help}>
            Keys <kbd>?</kbd>
          </button>
          <button type="button" onClick={nextTheme}>
            {`Theme: ${theme.value}`}
          </button>
        </div>
      </header>
      {comparing && run && <CompareWith key={parts.join("/")} run={run} node={node} close={() => setComparing(false)} />}
      {help && <Help close={() => setHelp(false)} />}
      {source() && (
        <p class="bundled">{`${source()?.words}, written ${moment(source()?.made)}. Nothing can be changed here.`}</p>
      )}
      <div id="content">
        <View parts={parts} />
      </div>
    </div>
  );
}

if (isBundle) setSource(opened());
else takeToken();
applyTheme();
const root = document.getElementById("page");
if (root) render(<App />, root);
