package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/view/objecttext"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/lab/desired"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

func newLabGetCommand() *cobra.Command {
	var name, output string
	var namespaces namespaceFlags
	cmd := &cobra.Command{
		Use:   "get [KIND[,KIND] [NAME]]",
		Short: "Print the Kubernetes objects of a running lab, as kubectl get does",
		Long: `Print the Kubernetes objects of a running lab as they are now, as kubectl get does:
Services, EndpointSlices with a line for each endpoint, Deployments, Pods and Nodes.
kubectl's short names work: svc, eps, deploy, po, no. The output of -o yaml can be edited
and given to nfqproxy lab apply -f -.`,
		Example: `  nfqproxy lab get svc,eps
  nfqproxy lab get all -A
  nfqproxy lab get pods -n shop
  nfqproxy lab get deploy web -o yaml | sed s/8080/8081/ | nfqproxy lab apply -f -`,
		Args:              atMost(2, "a kind and a name"),
		ValidArgsFunction: objectNames(&name, objecttext.Plurals()),
		RunE: func(cmd *cobra.Command, args []string) error {
			selection, err := selectionOf(args)
			if err != nil {
				return err
			}
			if selection.Namespace = namespaces.selected(); strings.Contains(selection.Name, "/") {
				selection.Namespace = ""
			}
			o, err := lab.ObjectsOf(name)
			if err != nil {
				return err
			}
			objects, err := objecttext.Select(o, selection)
			if err != nil {
				return err
			}
			return unlessClosed(cmd.Context(), objecttext.Write(cmd.OutOrStdout(), objects, output, selection.Name != ""))
		},
	}
	namespaces.add(cmd, "the objects", "default")
	namespaces.namespace = "default"
	oneOf(cmd, &output, "output", "o", "", objecttext.Formats...)
	labFlag(cmd, &name)
	return cmd
}

// selectionOf are the objects that arguments select: kinds, and a name.
func selectionOf(args []string) (s objecttext.Selection, err error) {
	if len(args) > 0 && args[0] != "all" {
		for text := range strings.SplitSeq(args[0], ",") {
			kind, err := objecttext.KindOf(text)
			if err != nil {
				return s, err
			}
			s.Kinds = append(s.Kinds, kind)
		}
	}
	if len(args) > 1 {
		s.Name = args[1]
	}
	return s, nil
}

// objectNames completes a kind, and then the names of its objects in a running lab.
func objectNames(name *string, kinds []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return kinds, cobra.ShellCompDirectiveNoFileComp
		case 1:
			return soon(func(context.Context) []string { return labObjects(*name, args[0]) }), cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// objectNamespaceFlag adds the --namespace of a name.
func objectNamespaceFlag(cmd *cobra.Command, namespace *string) {
	namespaceFlag(cmd, namespace, "a NAME without one", "none; a name that is unique in the lab needs no namespace")
}

// labObjects are the names of a running lab's objects of some kinds.
func labObjects(name, kinds string) (all []string) {
	s, err := selectionOf([]string{kinds})
	if err != nil {
		return nil
	}
	o, err := lab.ObjectsOf(name)
	if err != nil {
		return nil
	}
	objects, _ := objecttext.Select(o, s) // without a name never an error
	for _, object := range objects {
		all = append(all, inNamespace(object.GetNamespace(), object.GetName()))
	}
	return all
}

func newLabApplyCommand() *cobra.Command {
	var name string
	var files []string
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Add Kubernetes objects to a running lab, or replace them",
		Long: `Add the Services, EndpointSlices, Deployments and Pods of manifests to a running lab, or
replace objects with the same names. A Service without a ClusterIP or node port gets one,
and a Service with a selector gets its EndpointSlices, as in a cluster. Containers run the
built-in server on their ports, whatever their image is. The lab's file is not changed; if
one of these objects changes in the file later, the file's version applies again.`,
		Example: `  nfqproxy lab apply -f service.yaml
  kubectl get service,endpointslices web -o yaml | nfqproxy lab apply -f -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return errors.New("a file is required: give --filename FILE, or - for standard input")
			}
			o, err := labfile.LoadApplied(cmd.InOrStdin(), files)
			if err != nil {
				return err
			}
			applied, err := desired.Applicable(o, rulesNames(files))
			if err != nil {
				return err
			}
			text, err := applied.Manifest()
			if err != nil {
				return err
			}
			for _, line := range desired.LeftOut(o) {
				cmd.PrintErrln(line)
			}
			return changeLab(cmd.OutOrStdout(), name, lab.Change{Apply: text})
		},
	}
	labFlag(cmd, &name)
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "file or directory with manifests (YAML or JSON), or - for standard input; may be repeated")
	return cmd
}

func newLabDeleteCommand() *cobra.Command {
	var name, namespace string
	var kinds []string
	for _, k := range labapi.DeletionKinds {
		kinds = append(kinds, strings.ToLower(k)+"s")
	}
	cmd := &cobra.Command{
		Use:   "delete KIND NAME",
		Short: "Delete a Service, EndpointSlice, Deployment or Pod of a running lab",
		Long: `Delete an object of a running lab. A Deployment's pods are deleted with it; a deleted pod
of a Deployment is replaced. The lab's file is not changed; if the object changes in the
file later, the file's version applies again.`,
		Example: `  nfqproxy lab delete service web
  nfqproxy lab delete pod shop/web-1`,
		Args:              exactly(2, "a kind and a name"),
		ValidArgsFunction: objectNames(&name, kinds),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, err := objecttext.KindOf(args[0])
			if err != nil {
				return err
			}
			if !slices.Contains(labapi.DeletionKinds, kind) {
				return fmt.Errorf("a running lab keeps its %ss: edit its file and start it again", strings.ToLower(kind))
			}
			return changeLab(cmd.OutOrStdout(), name, lab.Change{Delete: &lab.Deletion{Kind: kind, Name: inNamespace(namespace, args[1])}})
		},
	}
	objectNamespaceFlag(cmd, &namespace)
	labFlag(cmd, &name)
	return cmd
}
