//go:build ignore

// The kubelet's own expansion of `$(NAME)` on texts in which its rules meet: the rows that tests/unit/test_expansion.py reads.
//
//	cd tools/controlplane/go/kube-1.36 && go run ../kube_expansion.go > ../../../../tests/unit/kubelet_expansions.jsonl
//
// A row is [text, what `Expand` of k8s.io/kubernetes makes of it]; the first row is the variables.
package main

import (
	"encoding/json"
	"os"

	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

var variables = map[string]string{"A": "value", "B": "$(A)", "": "nothing", "A B": "space", "$": "dollar", "(A": "open", "é": "accent"}

// Every text over these up to the length, and then mixtures.
var shortAlphabet, shortLength = []string{"$", "(", ")", "A"}, 5
var alphabet = []string{"$", "$", "(", "$(", ")", "A", "B", " ", "é", "\n"}

func main() {
	rows := json.NewEncoder(os.Stdout)
	rows.SetEscapeHTML(false)
	check(rows.Encode(variables))
	mapping := expansion.MappingFuncFor(variables)
	write := func(text string) { check(rows.Encode([]string{text, expansion.Expand(text, mapping)})) }
	var all func(beginning string, left int)
	all = func(beginning string, left int) {
		write(beginning)
		for _, next := range shortAlphabet {
			if left > 0 {
				all(beginning+next, left-1)
			}
		}
	}
	all("", shortLength)
	state := uint64(20261122)
	for range 600 {
		text := ""
		for range 6 + state>>33%10 {
			state = state*6364136223846793005 + 1442695040888963407
			text += alphabet[state>>33%uint64(len(alphabet))]
		}
		write(text)
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
